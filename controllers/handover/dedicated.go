package handover

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// dedicatedCPUs is nil for a guest that shares its CPUs.
func dedicatedCPUs(cpu *v1.CPU) *control.DedicatedCPUs {
	if !cpu.Dedicated() {
		return nil
	}
	return &control.DedicatedCPUs{IsolateEmulator: cpu.IsolateEmulatorThread}
}
