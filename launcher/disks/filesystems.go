package disks

import (
	"context"
	"fmt"
	"os"

	"github.com/kubeqemu/kubeqemu/launcher/virtiofs"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// connectFileSystems adds to files the connections to the programs that serve the machine's file systems.
func connectFileSystems(ctx context.Context, m *qemuargs.Machine, files map[string]*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, virtiofs.Patience)
	defer cancel()
	for _, f := range m.FileSystems {
		conn, err := virtiofs.Connect(ctx, f.Socket)
		if err != nil {
			return fmt.Errorf("connect file system %s to its program, of which the log of the container virtiofs-%s may say more: %w", f.Name, f.Name, err)
		}
		files[qemuargs.Inherited{Kind: qemuargs.InheritedFileSystem, Name: f.Name}.String()] = conn
	}
	return nil
}
