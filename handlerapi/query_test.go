package handlerapi

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/guestagent"
)

// TestFew: what an honest launcher says at most is taken, and as many empty values
// as fit a document are not.
func TestFew(t *testing.T) {
	var most control.GuestInfo
	for range 256 {
		most.Commands = append(most.Commands, guestagent.Command{Name: "guest-command", Enabled: true})
	}
	for range 64 {
		most.Users = append(most.Users, guestagent.User{Name: "user", Domain: "domain", LoginTime: 1})
		system := guestagent.FileSystem{Name: "sda1", MountPoint: "/", Type: "ext4"}
		for range 8 {
			system.Disks = append(system.Disks, guestagent.Disk{Serial: "1", BusType: "scsi"})
		}
		most.FSInfo.FileSystems = append(most.FSInfo.FileSystems, system)
	}
	honest, err := json.Marshal(most)
	if err != nil {
		t.Fatal(err)
	}
	hostile := `{"items":[` + strings.Repeat("{},", MaxDocument/3-10) + `{}]}`
	for name, c := range map[string]struct {
		document string
		taken    bool
	}{
		"honest": {string(honest), true}, "nothing": {`{"items":[]}`, true}, "hostile": {hostile, false},
		"flat": {"[" + strings.Repeat("1,", 200000) + "1]", false}, "deep": {strings.Repeat("[", 200000), false}, "cut": {`{"items":`, true},
	} {
		if err := few([]byte(c.document)); (err == nil) != c.taken {
			t.Errorf("%s: %v", name, err)
		}
	}
}
