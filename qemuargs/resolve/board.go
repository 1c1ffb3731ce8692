package resolve

import (
	"strings"

	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// chassis returns nil for QEMU's own.
func chassis(c *v1.Chassis) *qemuargs.Chassis {
	if c == nil || *c == (v1.Chassis{}) {
		return nil
	}
	return &qemuargs.Chassis{Manufacturer: c.Manufacturer, Version: c.Version, Serial: c.Serial, Asset: c.Asset, SKU: c.SKU}
}

// noPCIHole64 reports whether the machine has no window for PCI above 4 GiB. The annotation's value is KubeVirt's.
func noPCIHole64(vmi *v1.VirtualMachineInstance) bool {
	return strings.EqualFold(vmi.Annotations[v1.DisablePCIHole64Annotation], "true")
}

// endOnReboot reports whether a reboot of the guest ends it.
func endOnReboot(policy *v1.RebootPolicy) bool {
	return ptr.Deref(policy, v1.RebootPolicyReboot) == v1.RebootPolicyTerminate
}
