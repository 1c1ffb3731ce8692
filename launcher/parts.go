package launcher

import (
	"context"
	"os"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/parts"
)

// vmParts are the VM's parts by their names, for those who need one of them. The verbs of parts.Part go to all in the
// list.
type vmParts struct {
	dhcp      parts.DHCP
	variables parts.Variables
	tpm       parts.TPM
}

// newParts returns the parts of a VM that was not started.
func (l *launcher) newParts(ctx context.Context) vmParts {
	return vmParts{
		dhcp: parts.DHCP{ResolvConf: l.ResolvConf, Log: l.Log},
		tpm:  parts.TPM{Program: l.TPM, Output: l.Stderr, Log: l.Log, Tell: func(e life.Event) { l.tell(ctx, e) }},
	}
}

// list returns all parts, in the order in which they are started, and closed. The TPM is the last that starts before
// QEMU: what fails before it leaves no process behind.
func (p *vmParts) list() []parts.Part { return []parts.Part{&p.dhcp, &p.variables, &p.tpm} }

// prepareAll makes and opens the files of a start. It runs beside the loop.
func (p *vmParts) prepareAll(ctx context.Context, request *control.StartRequest) (map[string]*os.File, error) {
	files := map[string]*os.File{}
	for _, part := range p.list() {
		if err := part.Prepare(ctx, request, files); err != nil {
			disks.CloseAll(files)
			return nil, err
		}
	}
	return files, nil
}

// startAll starts the parts, right before QEMU.
func (p *vmParts) startAll(request *control.StartRequest, files map[string]*os.File) error {
	for _, part := range p.list() {
		if err := part.Start(request, files); err != nil {
			return err
		}
	}
	return nil
}
