package parts

import (
	"context"
	"fmt"
	"os"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// FileSystems are the programs that serve the machine's file systems: virtiofsd, once for each.
type FileSystems struct{ None }

// Prepare connects to the programs.
func (FileSystems) Prepare(ctx context.Context, request *control.StartRequest, files map[string]*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, sidecar.Patience)
	defer cancel()
	for _, f := range request.Machine.FileSystems {
		err := connectSidecar(ctx, files, f.Socket, qemuargs.Inherited{Kind: qemuargs.InheritedFileSystem, Name: f.Name},
			qemuargs.Inherited{Kind: qemuargs.InheritedLifeline, Name: f.Name})
		if err != nil {
			return fmt.Errorf("connect file system %s to its program, "+
				"of which the log of the container virtiofs-%s may say more: %w", f.Name, f.Name, err)
		}
	}
	return nil
}
