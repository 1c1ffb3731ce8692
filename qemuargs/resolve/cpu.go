package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// cpuModel is QEMU's name of a model. libvirt would compute host-model; without libvirt it
// means all that the accelerator offers.
func cpuModel(model string, accelerator qemuargs.Accelerator) string {
	switch model {
	case "host-model", "host-passthrough":
		if accelerator == qemuargs.KVM {
			return "host"
		}
		return "max"
	}
	return model
}

// cpuFlags are the paravirtual clocks, which only KVM has.
func cpuFlags(c *v1.Clock, accelerator qemuargs.Accelerator) []string {
	if c == nil || c.Timer == nil || accelerator != qemuargs.KVM {
		return nil
	}
	var flags []string
	if t := c.Timer.KVM; t != nil && !enabled(t.Present) {
		flags = append(flags, "kvmclock=off")
	}
	if t := c.Timer.Hyperv; t != nil && enabled(t.Present) {
		flags = append(flags, "hv-time=on")
	}
	return flags
}
