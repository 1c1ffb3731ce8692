package vmi

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// bookHugePages books the guest's RAM as huge pages, if it is of huge pages, and returns how many bytes that
// are. Kubernetes wants the limit of huge pages to be the request. It counts huge pages apart from memory.
func bookHugePages(r corev1.ResourceRequirements, memory *v1.Memory) int64 {
	if memory.Hugepages == nil {
		return 0
	}
	guest := *resource.NewQuantity(memory.Guest.Value(), resource.BinarySI)
	name := memory.Hugepages.Resource()
	r.Requests[name], r.Limits[name] = guest, guest
	return guest.Value()
}
