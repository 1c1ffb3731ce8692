package parts

import (
	"context"
	"fmt"
	"os"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// Sidecars are the machine's programs that run in containers of their own: virtiofsd for each file system, and passt
// for each network card that passt connects to the pod network.
type Sidecars struct{ None }

// Prepare connects to the programs. One bound holds for all of them together: the source of a migration waits for the
// target's start, and not for longer with each program.
func (Sidecars) Prepare(ctx context.Context, request *control.StartRequest, files map[string]*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, sidecar.Patience)
	defer cancel()
	for _, f := range request.Machine.FileSystems {
		err := connectSidecar(ctx, files, f.Socket, f.Name, qemuargs.InheritedFileSystem, qemuargs.InheritedLifeline)
		if err != nil {
			return fmt.Errorf("connect file system %s to its program, "+
				"of which the log of the container virtiofs-%s may say more: %w", f.Name, f.Name, err)
		}
	}
	for _, nic := range request.Machine.NICs {
		if nic.Passt == "" {
			continue
		}
		err := connectSidecar(ctx, files, nic.Passt, nic.Name, qemuargs.InheritedPasst, qemuargs.InheritedPasstLifeline)
		if err != nil {
			return fmt.Errorf("connect interface %s to passt, "+
				"of which the log of the container %s may say more: %w", nic.Name, layout.PasstContainer(nic.Name), err)
		}
	}
	return nil
}

// connectSidecar adds to files the connection to a program, and then that to its lifeline: from the lifeline on, the
// program's container runs no other program.
func connectSidecar(ctx context.Context, files map[string]*os.File, socket, name string,
	program, lifeline qemuargs.InheritedKind) error {
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
