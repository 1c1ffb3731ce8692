package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// acpiTables returns the tables of a VMI's volumes. The launcher looks at them when it starts the guest.
func acpiTables(spec *v1.VirtualMachineInstanceSpec, host Host) (out []qemuargs.ACPITable) {
	for _, t := range spec.ACPITables() {
		out = append(out, qemuargs.ACPITable{Name: t.Signature, Volume: t.Volume, Path: layout.Below(host.Root, layout.ACPITable(t.Signature))})
	}
	return out
}
