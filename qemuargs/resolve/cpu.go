package resolve

import (
	"errors"
	"slices"
	"strings"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/hostcpu"
)

func cpu(domain *v1.DomainSpec, host Host) (qemuargs.CPU, error) {
	model, err := cpuModel(domain.CPU.Model, host)
	return qemuargs.CPU{
		Model:   model,
		Sockets: domain.CPU.Sockets, Cores: domain.CPU.Cores, Threads: domain.CPU.Threads,
		Flags:      append(paravirtualFlags(domain, host.Accelerator), realtimeFlags(domain.CPU)...),
		MaxSockets: maxSockets(domain.CPU),
	}, err
}

// cpuModel returns QEMU's name of a model. host-model is QEMU's model base with the flags of the host, where they are
// known: then the guest keeps its CPU when it moves. Else it means all that the accelerator offers, as host-passthrough
// does. A model that no QEMU has is refused here: QEMU would end at its start.
func cpuModel(model string, host Host) (string, error) {
	switch model {
	case v1.HostModel, v1.HostPassthrough:
		if model == v1.HostModel && len(host.HostModel) > 0 {
			return hostcpu.Base, nil
		}
		if host.Accelerator == qemuargs.KVM {
			return "host", nil
		}
		return "max", nil
	case "host":
		if host.Accelerator != qemuargs.KVM {
			return "", errors.New("needs KVM, and this node emulates its guests; host-passthrough works with both")
		}
	}
	if !v1.KnownCPUModel(model) {
		return "", errors.New("QEMU has no such CPU model; qemu-system-x86_64 -cpu help lists the models")
	}
	return model, nil
}

// hostFlags returns the flags of a host's own CPU, without those that later flags override.
func hostFlags(c *v1.CPU, host Host, later []string) (out []string) {
	if c.Model != v1.HostModel {
		return nil
	}
	said := map[string]bool{}
	for _, flag := range later {
		name, value, _ := strings.Cut(flag, "=")
		said[name] = true
		if name == "vmx" && value == string(qemuargs.Off) {
			said["vmx-"] = true // QEMU warns of each part of a feature that is off
		}
	}
	for _, flag := range host.HostModel {
		name, _, _ := strings.Cut(flag, "=")
		if said[name] || said["vmx-"] && strings.HasPrefix(name, "vmx-") {
			continue
		}
		out = append(out, flag)
	}
	return out
}

// realtimeFlags turn performance counters off, as in KubeVirt: their interrupts would delay a guest that must answer in
// time.
func realtimeFlags(cpu *v1.CPU) []string {
	asked := slices.ContainsFunc(cpu.Features, func(f v1.CPUFeature) bool { return f.QEMUName() == "pmu" })
	if cpu.Realtime == nil || asked {
		return nil
	}
	return []string{"pmu=off"}
}
