package parts

import (
	"context"
	"os"

	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// connectSidecar adds to files the connection to a program in a container of its own, and then that to its lifeline:
// from the lifeline on, the program's container runs no other program.
func connectSidecar(ctx context.Context, files map[string]*os.File, socket string,
	program, lifeline qemuargs.Inherited) error {
	for _, c := range []struct {
		file   qemuargs.Inherited
		socket string
	}{{program, socket}, {lifeline, layout.Lifeline(socket)}} {
		conn, err := sidecar.Connect(ctx, c.socket)
		if err != nil {
			return err
		}
		files[c.file.String()] = conn
	}
	return nil
}
