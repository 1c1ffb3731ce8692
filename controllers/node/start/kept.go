package start

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// Kept returns a host as a launcher keeps it, for those who ask later by what the guest's arguments were made. Kept
// returns nothing for a launcher that does not know of it, and for a host that is too long: the guest starts without.
func Kept(host resolve.Host, knows control.Commands) (string, error) {
	if !slices.Contains(knows[control.CommandStart], "host") {
		return "", nil
	}
	text, err := json.Marshal(host)
	if err != nil {
		return "", fmt.Errorf("encode the host: %w", err)
	}
	if len(text) > control.MaxHostBytes {
		return "", nil
	}
	return string(text), nil
}
