package disks

import (
	"context"
	"fmt"
	"os"

	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// connectSidecars adds to files the connections to the programs that serve the machine's file systems, to those behind its network cards, and to what
// is around these programs.
func connectSidecars(ctx context.Context, m *qemuargs.Machine, files map[string]*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, sidecar.Patience)
	defer cancel()
	for _, f := range m.FileSystems {
		if err := connectSidecar(ctx, files, f.Socket, f.Name, qemuargs.InheritedFileSystem, qemuargs.InheritedLifeline); err != nil {
			return fmt.Errorf("connect file system %s to its program, of which the log of the container virtiofs-%s may say more: %w", f.Name, f.Name, err)
		}
	}
	for i, nic := range m.NICs {
		if nic.Passt == "" {
			continue
		}
		if err := connectSidecar(ctx, files, nic.Passt, nic.Name, qemuargs.InheritedPasst, qemuargs.InheritedPasstLifeline); err != nil {
			return fmt.Errorf("connect interface %s to passt, of which the log of the container passt-%d may say more: %w", nic.Name, i, err)
		}
	}
	return nil
}

// connectSidecar adds to files the connection to a program, and then that to its lifeline: from the lifeline on, the program's container runs no other
// program.
func connectSidecar(ctx context.Context, files map[string]*os.File, socket, name string, program, lifeline qemuargs.InheritedKind) error {
	for _, c := range []struct {
		kind   qemuargs.InheritedKind
		socket string
	}{{program, socket}, {lifeline, layout.Lifeline(socket)}} {
		conn, err := sidecar.Connect(ctx, c.socket)
		if err != nil {
			return err
		}
		files[qemuargs.Inherited{Kind: c.kind, Name: name}.String()] = conn
	}
	return nil
}
