package v1

import (
	"slices"
)

// HasSRIOV reports whether the guest has a network card of the node.
func (d *Devices) HasSRIOV() bool {
	return slices.ContainsFunc(d.Interfaces, func(n Interface) bool { return n.SRIOV != nil })
}

// LocksMemory reports whether QEMU locks memory: all of the guest's, if a device of the node reads and writes it.
func (d *DomainSpec) LocksMemory() bool { return d.Memory.LocksMemory() || d.Devices.HasSRIOV() }
