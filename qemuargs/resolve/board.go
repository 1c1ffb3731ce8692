package resolve

import (
	"strings"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// chassis is nil for QEMU's own.
func chassis(c *v1.Chassis, why *Decisions) *qemuargs.Chassis {
	const field = "spec.domain.chassis"
	if c == nil || *c == (v1.Chassis{}) {
		return nil
	}
	why.add("chassis", field, "")
	for _, name := range []string{"manufacturer", "version", "serial", "asset", "sku"} {
		why.add("chassis."+name, field+"."+name, "")
	}
	return &qemuargs.Chassis{Manufacturer: c.Manufacturer, Version: c.Version, Serial: c.Serial, Asset: c.Asset, SKU: c.SKU}
}

// noPCIHole64 says whether the machine has no window for PCI above 4 GiB. The annotation's value is KubeVirt's.
func noPCIHole64(vmi *v1.VirtualMachineInstance, why *Decisions) bool {
	why.add("noPCIHole64", "metadata.annotations["+v1.DisablePCIHole64Annotation+"]", "PCI has a window above 4 GiB unless the annotation is true")
	return strings.EqualFold(vmi.Annotations[v1.DisablePCIHole64Annotation], "true")
}
