package launcher

import (
	"context"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/parts"
)

// vmParts are the VM's parts by name, for commands that are about one of them. The loop goes through the list.
type vmParts struct {
	disks     parts.Disks
	sidecars  parts.Sidecars
	dhcp      parts.DHCP
	variables parts.Variables
	tpm       parts.TPM
	serial    parts.Serial
	agent     parts.Agent
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

// list returns all parts, in the order in which each verb goes through them. The order matters for the TPM alone,
// which is the last that is prepared and that starts before QEMU: what fails before it leaves no new folder on a claim
// and no process behind.
func (p *vmParts) list() parts.List {
	return parts.List{p.disks, p.sidecars, &p.dhcp, &p.variables, &p.tpm, &p.serial, &p.agent}
}
