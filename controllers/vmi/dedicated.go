package vmi

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// bookDedicated makes a pod's quality of service Guaranteed, with a whole number of CPUs. Only then does the
// kubelet give its container CPUs of its own. The pod books all memory that its guest may use, whatever the
// cluster overcommits: the request is a limit too.
func bookDedicated(r corev1.ResourceRequirements, domain *v1.DomainSpec, overhead int64) {
	cpus := *resource.NewQuantity(domain.CPU.HostCPUs(), resource.DecimalSI)
	r.Requests[corev1.ResourceCPU], r.Limits[corev1.ResourceCPU] = cpus, cpus
	least := overhead
	if domain.Memory.Hugepages == nil {
		least += domain.Memory.Guest.Value()
	}
	request, limit := r.Requests[corev1.ResourceMemory], r.Limits[corev1.ResourceMemory]
	memory := *resource.NewQuantity(max(request.Value(), limit.Value(), least), resource.BinarySI)
	r.Requests[corev1.ResourceMemory], r.Limits[corev1.ResourceMemory] = memory, memory
}
