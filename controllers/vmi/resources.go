package vmi

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const mib = int64(1) << 20

// What QEMU and the launcher take besides guest RAM (docs/architecture.md).
const (
	overheadFixed     = 64 * mib
	overheadPerGiB    = 2 * mib // page tables
	overheadPerVCPU   = 3 * mib
	overheadGraphics  = 16 * mib  // VGA memory
	overheadEmulation = 160 * mib // TCG's translation cache (tb-size=128) and its tables
	overheadSeed      = 1 * mib   // cloud-init seeds, in memory
)

// Overhead is the memory booked besides guest RAM, in bytes.
func Overhead(vmi *v1.VirtualMachineInstance, emulation bool) int64 {
	domain := &vmi.Spec.Domain
	const gib = 1 << 30
	total := overheadFixed +
		overheadPerGiB*((domain.Memory.Guest.Value()+gib-1)/gib) +
		overheadPerVCPU*int64(domain.CPU.Sockets)*int64(domain.CPU.Cores)*int64(domain.CPU.Threads)
	if g := domain.Devices.AutoattachGraphicsDevice; g == nil || *g {
		total += overheadGraphics
	}
	if emulation {
		total += overheadEmulation
	}
	for _, v := range vmi.Spec.Volumes {
		if v.CloudInitNoCloud != nil {
			total += overheadSeed
		}
	}
	return total
}

// resources of the launcher's container: the VMI's own, with the overhead on
// top of memory, a tenth of a CPU per vCPU where no CPU is requested
// (KubeVirt's cpuAllocationRatio of 10), and one slot.
func resources(vmi *v1.VirtualMachineInstance, config PodConfig) corev1.ResourceRequirements {
	domain := &vmi.Spec.Domain
	overhead := Overhead(vmi, config.Emulation)
	r := corev1.ResourceRequirements{
		Requests: corev1.ResourceList(domain.Resources.Requests.DeepCopy()), Limits: corev1.ResourceList(domain.Resources.Limits.DeepCopy()),
	}
	if r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	if r.Limits == nil {
		r.Limits = corev1.ResourceList{}
	}
	memory, ok := r.Requests[corev1.ResourceMemory]
	if !ok {
		if memory, ok = r.Limits[corev1.ResourceMemory]; !ok {
			memory = *domain.Memory.Guest
		}
	}
	r.Requests[corev1.ResourceMemory] = *resource.NewQuantity(memory.Value()+overhead, resource.BinarySI)
	if limit, ok := r.Limits[corev1.ResourceMemory]; ok {
		r.Limits[corev1.ResourceMemory] = *resource.NewQuantity(limit.Value()+overhead, resource.BinarySI)
	}
	if _, ok := r.Requests[corev1.ResourceCPU]; !ok {
		vcpus := int64(domain.CPU.Sockets) * int64(domain.CPU.Cores) * int64(domain.CPU.Threads)
		r.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(100*vcpus, resource.DecimalSI)
	}
	one := *resource.NewQuantity(1, resource.DecimalSI)
	r.Requests[SlotResource], r.Limits[SlotResource] = one, one
	return r
}
