package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// panicDevices adds those that are devices of QEMU: model hyperv is a flag of the CPU.
func panicDevices(b *build) {
	if b.devices().HasPanic(v1.PanicISA) {
		b.m.PanicPort = &qemuargs.PanicPort{}
	}
	if b.devices().HasPanic(v1.PanicPVPanic) {
		b.m.PanicCard = &qemuargs.PanicCard{PCI: integrated(panicSlot)}
	}
}
