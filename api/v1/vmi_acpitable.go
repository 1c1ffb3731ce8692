package v1

import (
	"slices"
)

// ACPITables are tables that the guest finds beside QEMU's own. Each is in a Secret.
type ACPITables struct {
	// SlicNameRef is the name of a volume of kind secret. The Secret's entry slic.bin is the table SLIC: its header and all.
	// The volume needs no disk.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	SlicNameRef string `json:"slicNameRef,omitempty"`
	// MsdmNameRef is the name of a volume of kind secret. The Secret's entry msdm.bin is the table MSDM: its header and all.
	// The volume needs no disk.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	MsdmNameRef string `json:"msdmNameRef,omitempty"`
}

// ACPITable is a table of ACPITables.
type ACPITable struct {
	// Field of ACPITables that names the volume.
	Field  string
	Volume string
	// Signature of the table.
	Signature string
}

// ACPITables returns the tables of the VMI that its volumes hold.
func (spec *VirtualMachineInstanceSpec) ACPITables() (out []ACPITable) {
	f := spec.Domain.Firmware
	if f == nil || f.ACPI == nil {
		return nil
	}
	for _, t := range []ACPITable{
		{"slicNameRef", f.ACPI.SlicNameRef, "SLIC"}, {"msdmNameRef", f.ACPI.MsdmNameRef, "MSDM"},
	} {
		if t.Volume != "" {
			out = append(out, t)
		}
	}
	return out
}

// IsACPITable reports whether a volume holds an ACPI table.
func (spec *VirtualMachineInstanceSpec) IsACPITable(volume string) bool {
	return slices.ContainsFunc(spec.ACPITables(), func(t ACPITable) bool { return t.Volume == volume })
}
