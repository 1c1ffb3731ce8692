package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// vcpus are the fields that the number of virtual CPUs is the product of.
const vcpus = "spec.domain.cpu.sockets spec.domain.cpu.cores spec.domain.cpu.threads"

func cpu(domain *v1.DomainSpec, accelerator qemuargs.Accelerator, why *Decisions) qemuargs.CPU {
	why.add("cpu", "", "every machine has CPUs")
	why.add("cpu.sockets", "spec.domain.cpu.sockets", "")
	why.add("cpu.cores", "spec.domain.cpu.cores", "")
	why.add("cpu.threads", "spec.domain.cpu.threads", "")
	return qemuargs.CPU{
		Model:   cpuModel(domain.CPU.Model, accelerator, why),
		Sockets: domain.CPU.Sockets, Cores: domain.CPU.Cores, Threads: domain.CPU.Threads,
		Flags: cpuFlags(domain.Clock, accelerator, why),
	}
}

// cpuModel is QEMU's name of a model. libvirt would compute host-model; without libvirt it
// means all that the accelerator offers.
func cpuModel(model string, accelerator qemuargs.Accelerator, why *Decisions) string {
	switch model {
	case "host-model", "host-passthrough":
		why.add("cpu.model", "spec.domain.cpu.model host.accelerator", "the host's own model under KVM, and max under TCG")
		if accelerator == qemuargs.KVM {
			return "host"
		}
		return "max"
	}
	why.add("cpu.model", "spec.domain.cpu.model", "")
	return model
}

// cpuFlags are the paravirtual clocks, which only KVM has.
func cpuFlags(c *v1.Clock, accelerator qemuargs.Accelerator, why *Decisions) []string {
	if c == nil || c.Timer == nil || accelerator != qemuargs.KVM {
		return nil
	}
	var flags []string
	if t := c.Timer.KVM; t != nil && !enabled(t.Present) {
		flags = append(flags, "kvmclock=off")
		why.add("cpu.flags[kvmclock=off]", "spec.domain.clock.timer.kvm.present host.accelerator", "only KVM has the clock")
	}
	if t := c.Timer.Hyperv; t != nil && enabled(t.Present) {
		flags = append(flags, "hv-time=on")
		why.add("cpu.flags[hv-time=on]", "spec.domain.clock.timer.hyperv spec.domain.clock.timer.hyperv.present host.accelerator", "only KVM has the clock")
	}
	return flags
}
