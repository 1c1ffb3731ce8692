package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// acpiTables are the tables of a VMI's volumes. The launcher looks at them when it starts the guest.
func acpiTables(spec *v1.VirtualMachineInstanceSpec, host Host, why *Decisions) (out []qemuargs.ACPITable) {
	for _, t := range spec.ACPITables() {
		field, part := "spec.domain.firmware.acpi."+t.Field, "acpiTables["+t.Signature+"]"
		why.add(part, field, "")
		why.add(part+".name", "", "the table's signature")
		why.add(part+".volume", field, "")
		why.add(part+".path", "", "the launcher's copy of the table")
		out = append(out, qemuargs.ACPITable{Name: t.Signature, Volume: t.Volume, Path: layout.Below(host.Root, layout.ACPITable(t.Signature))})
	}
	return out
}
