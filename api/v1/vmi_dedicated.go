package v1

// Labels of nodes whose kubelet gives containers CPUs of their own (its static CPU manager policy), by KubeVirt's
// names. A pod with dedicated CPUs selects CPUManagerLabel.
const (
	CPUManagerLabel    = "kubevirt.io/cpumanager"
	OldCPUManagerLabel = "cpumanager"
)

// RealtimeLabel is KubeVirt's label of nodes on which real-time threads may run without end (kernel.sched_rt_runtime_us
// is -1). A pod whose guest has the real-time scheduler selects it.
const RealtimeLabel = "kubevirt.io/realtime"

// Dedicated reports whether the guest has CPUs of the node to itself.
func (c *CPU) Dedicated() bool { return c != nil && c.DedicatedCPUPlacement }

// HostCPUs returns how many CPUs of its own the pod of a guest with dedicated CPUs needs: one for each of the guest's,
// and one for QEMU's other threads if they are isolated.
func (c *CPU) HostCPUs() int64 {
	n := c.VCPUs()
	if c.IsolateEmulatorThread {
		n++
	}
	return n
}
