package handover

import (
	"fmt"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// dedicatedCPUs is nil for a guest that shares its CPUs.
func dedicatedCPUs(cpu *v1.CPU) *control.DedicatedCPUs {
	if !cpu.Dedicated() {
		return nil
	}
	return &control.DedicatedCPUs{IsolateEmulator: cpu.IsolateEmulatorThread}
}

const (
	// maxHostCPUs and maxHostNodes are more than any pod has (CONFIG_NR_CPUS and MAX_NUMNODES of the kernel).
	maxHostCPUs  = 8192
	maxHostNodes = 1024
)

// takeNodes takes the NUMA nodes of the pod's CPUs. A tenant may control the
// launcher. If the launcher lies about a NUMA node, it harms only its own guest.
func takeNodes(host *resolve.Host, asked control.InspectRequest, reply control.InspectReply) error {
	if !asked.CPUs {
		return nil
	}
	if n := len(reply.CPUNodes); n == 0 || n > maxHostCPUs {
		return fmt.Errorf("inspect CPUs: %w: the pod has %d", control.ErrProtocol, n)
	}
	for i, node := range reply.CPUNodes {
		if node < 0 || node >= maxHostNodes || i > 0 && node < reply.CPUNodes[i-1] {
			return fmt.Errorf("inspect CPUs: %w: node %d of CPU %d of the pod", control.ErrProtocol, node, i)
		}
	}
	host.CPUNodes = reply.CPUNodes
	return nil
}
