package launcher

import (
	"context"
	"errors"
	"os"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/parts"
	"github.com/kubeqemu/kubeqemu/launcher/process"
)

// vmParts are the VM's parts by their names, for those who need one of them. The verbs of parts.Part go to all in the
// list.
type vmParts struct {
	disks       parts.Disks
	fileSystems parts.FileSystems
	passt       parts.Passt
	dhcp        parts.DHCP
	variables   parts.Variables
	tpm         parts.TPM
	serial      parts.Serial
	agent       parts.Agent
}

// newParts returns the parts of a VM that was not started.
func (l *launcher) newParts(ctx context.Context) vmParts {
	return vmParts{
		disks:  parts.Disks{Folders: l.Folders, Patience: l.DiskPatience, Log: l.Log},
		dhcp:   parts.DHCP{ResolvConf: l.ResolvConf, Log: l.Log},
		tpm:    parts.TPM{Program: l.TPM, Output: l.Stderr, Log: l.Log, Tell: func(e life.Event) { l.tell(ctx, e) }},
		serial: parts.Serial{Socket: l.ConsoleSocket, Output: l.Stdout, Console: l.Console, Log: l.Log},
		agent: parts.Agent{Socket: l.AgentSocket, Secrets: l.Secrets, Log: l.Log,
			Tell: func(r control.AgentReport) { l.link.ReportAgent(r) }},
	}
}

// list returns all parts. Each verb goes to them in this order. It matters for the TPM alone, which is the last that
// starts before QEMU: what fails before it leaves no process behind.
func (p *vmParts) list() []parts.Part {
	return []parts.Part{&p.disks, p.fileSystems, p.passt, &p.dhcp, &p.variables, &p.tpm, &p.serial, &p.agent}
}

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

// attachAll connects the parts to QEMU.
func (p *vmParts) attachAll(request *control.StartRequest, qemu *process.QEMU) error {
	for _, part := range p.list() {
		if err := part.Attach(request, qemu); err != nil {
			return err
		}
	}
	return nil
}

// arriveAll tells the parts that the guest has come from another launcher.
func (p *vmParts) arriveAll(ctx context.Context) {
	for _, part := range p.list() {
		part.Arrive(ctx)
	}
}

// closeAll ends the parts. The error says how parts have failed.
func (p *vmParts) closeAll() (err error) {
	for _, part := range p.list() {
		err = errors.Join(err, part.Close())
	}
	return err
}
