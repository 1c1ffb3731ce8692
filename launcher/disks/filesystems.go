package disks

import (
	"context"
	"fmt"
	"os"

	"github.com/kubeqemu/kubeqemu/launcher/virtiofs"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// connectFileSystems adds to files the connections to the programs that serve the machine's file systems, and to what is around these programs.
func connectFileSystems(ctx context.Context, m *qemuargs.Machine, files map[string]*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, virtiofs.Patience)
	defer cancel()
	for _, f := range m.FileSystems {
		for _, c := range []struct {
			kind   qemuargs.InheritedKind
			socket string
		}{
			{qemuargs.InheritedFileSystem, f.Socket},
			// After the program's: from the lifeline on, the file system's container runs no other program.
			{qemuargs.InheritedLifeline, layout.Lifeline(f.Socket)},
		} {
			conn, err := virtiofs.Connect(ctx, c.socket)
			if err != nil {
				return fmt.Errorf("connect file system %s to its program, of which the log of the container virtiofs-%s may say more: %w", f.Name, f.Name, err)
			}
			files[qemuargs.Inherited{Kind: c.kind, Name: f.Name}.String()] = conn
		}
	}
	return nil
}
