package v1

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Labels of nodes whose kubelet gives containers CPUs of their own (its static CPU manager policy), by KubeVirt's names. A pod with
// dedicated CPUs selects CPUManagerLabel.
const (
	CPUManagerLabel    = "kubevirt.io/cpumanager"
	OldCPUManagerLabel = "cpumanager"
)

// RealtimeLabel is KubeVirt's label of nodes on which real-time threads may run without end (kernel.sched_rt_runtime_us is -1). A pod whose guest has
// the real-time scheduler selects it.
const RealtimeLabel = "kubevirt.io/realtime"

// Dedicated says whether the guest has CPUs of the node to itself.
func (c *CPU) Dedicated() bool { return c != nil && c.DedicatedCPUPlacement }

// HostCPUs is how many CPUs of its own the pod of a guest with dedicated CPUs needs: one for each of the guest's, and one for
// QEMU's other threads if they are isolated.
func (c *CPU) HostCPUs() int64 {
	n := c.VCPUs()
	if c.IsolateEmulatorThread {
		n++
	}
	return n
}

// validateDedicated returns what is wrong with a guest that has CPUs to itself. The kubelet gives a container CPUs of its own only if
// the container's requests of CPU and memory are its limits, and the CPUs are a whole number.
func validateDedicated(d *DomainSpec, path *field.Path) field.ErrorList {
	c := d.CPU
	var errs field.ErrorList
	if !c.Dedicated() {
		if c.IsolateEmulatorThread {
			errs = append(errs, field.Invalid(path.Child("cpu", "isolateEmulatorThread"), true, "should be only set in combination with dedicatedCpuPlacement"))
		}
		return errs
	}
	const with = " with cpu.dedicatedCpuPlacement"
	resources := path.Child("resources")
	invalid := func(kind string, name corev1.ResourceName, value, why string) {
		errs = append(errs, field.Invalid(resources.Child(kind).Key(string(name)), value, why+with))
	}
	if c.Threads > 2 {
		errs = append(errs, field.Invalid(path.Child("cpu", "threads"), c.Threads, "must not be more than 2"+with))
	}
	for kind, list := range map[string]ResourceList{"requests": d.Resources.Requests, "limits": d.Resources.Limits} {
		if cpus, ok := list[corev1.ResourceCPU]; ok {
			switch {
			case cpus.MilliValue()%1000 != 0:
				invalid(kind, corev1.ResourceCPU, cpus.String(), "must be an integer")
			case cpus.Value() != c.VCPUs():
				invalid(kind, corev1.ResourceCPU, cpus.String(), fmt.Sprintf("must be cores × sockets × threads (%d)", c.VCPUs()))
			}
		}
		if memory, ok := list[corev1.ResourceMemory]; ok && d.Memory.Hugepages == nil && d.Memory.Guest != nil && memory.Cmp(*d.Memory.Guest) < 0 {
			invalid(kind, corev1.ResourceMemory, memory.String(), fmt.Sprintf("must not be less than memory.guest (%s)", d.Memory.Guest.String()))
		}
	}
	request, requested := d.Resources.Requests[corev1.ResourceMemory]
	limit, limited := d.Resources.Limits[corev1.ResourceMemory]
	if requested && limited && !request.Equal(limit) {
		invalid("requests", corev1.ResourceMemory, request.String(), fmt.Sprintf("must be equal to limits (%s)", limit.String()))
	}
	return errs
}
