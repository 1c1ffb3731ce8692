package vmi

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// observeMemory notes the guest's memory, and what its pod books besides it.
func observeMemory(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) {
	m := vmi.Spec.Domain.Memory
	if m == nil || m.Guest == nil {
		return
	}
	if vmi.Status.Memory == nil {
		vmi.Status.Memory = &v1.MemoryStatus{GuestAtBoot: ptr.To(m.Guest.DeepCopy())}
	}
	s := vmi.Status.Memory
	s.GuestCurrent, s.GuestRequested = ptr.To(m.Guest.DeepCopy()), ptr.To(m.Guest.DeepCopy())
	if q, err := resource.ParseQuantity(pod.Annotations[v1.MemoryOverheadAnnotation]); err == nil && q.Sign() >= 0 {
		s.MemoryOverhead = &q
	}
}
