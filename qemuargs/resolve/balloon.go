package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// balloon adds the memory balloon, unless it is turned off.
func balloon(b *build) {
	if devices := b.devices(); enabled(devices.AutoattachMemBalloon) {
		noReporting := b.host.NoFreePageReporting || keepsPages(b.vmi)
		b.m.Balloon = &qemuargs.Balloon{PCI: integrated(balloonSlot), NoReporting: noReporting, Transitional: devices.Transitional()}
	}
}

// keepsPages reports whether the guest's pages stay QEMU's when the guest has freed them, as in KubeVirt. A huge page
// that QEMU gives back is another pod's before the guest wants it again, and the guest would be killed. A guest with
// CPUs of its own is not to wait for pages that it had before. An annotation asks for the same.
func keepsPages(vmi *v1.VirtualMachineInstance) bool {
	domain := &vmi.Spec.Domain
	return domain.Memory.Hugepages != nil || domain.CPU.Dedicated() ||
		vmi.Annotations[v1.NoFreePageReportingAnnotation] == "true"
}
