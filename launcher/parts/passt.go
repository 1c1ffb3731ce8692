package parts

import (
	"context"
	"fmt"
	"os"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Passt is the programs that connect the machine's network cards to the pod network: passt, once for each such card.
type Passt struct{ None }

// Prepare connects to the programs.
func (Passt) Prepare(ctx context.Context, request *control.StartRequest, files map[string]*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, sidecar.Patience)
	defer cancel()
	for i, nic := range request.Machine.NICs {
		if nic.Passt == "" {
			continue
		}
		err := connectSidecar(ctx, files, nic.Passt, qemuargs.Inherited{Kind: qemuargs.InheritedPasst, Name: nic.Name},
			qemuargs.Inherited{Kind: qemuargs.InheritedPasstLifeline, Name: nic.Name})
		if err != nil {
			return fmt.Errorf("connect interface %s to passt, "+
				"of which the log of the container passt-%d may say more: %w", nic.Name, i, err)
		}
	}
	return nil
}
