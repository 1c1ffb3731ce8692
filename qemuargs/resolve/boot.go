package resolve

import (
	"slices"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// boot makes the first hard disk bootable, or else the first disk, if no device has a boot order. In a running machine
// that was chosen at the start: the firmware looks for it at each reset.
func boot(b *build) {
	devices, disks := b.devices(), b.m.Disks
	if len(disks) == 0 ||
		slices.ContainsFunc(devices.Disks, func(d v1.Disk) bool { return d.BootOrder != nil }) ||
		slices.ContainsFunc(devices.Interfaces, func(nic v1.Interface) bool { return nic.BootOrder != nil }) {
		return
	}
	if b.running != nil {
		was := b.runningDisks()
		for i, d := range disks {
			disks[i].BootIndex = was[d.Name].BootIndex
		}
		return
	}
	first := slices.IndexFunc(disks, func(d qemuargs.Disk) bool {
		return d.Driver != qemuargs.IDECD && d.Driver != qemuargs.SCSICD
	})
	disks[max(first, 0)].BootIndex = 1
}
