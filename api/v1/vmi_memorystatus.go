package v1

import "k8s.io/apimachinery/pkg/api/resource"

// MemoryStatus is the memory of a guest, and what its launcher pod books besides it. What QEMU uses changes all the time, and is in
// virt-handler's metrics.
type MemoryStatus struct {
	// GuestAtBoot is the memory that the guest began with.
	// +optional
	GuestAtBoot *resource.Quantity `json:"guestAtBoot,omitempty"`
	// GuestCurrent is the guest's memory now.
	// +optional
	GuestCurrent *resource.Quantity `json:"guestCurrent,omitempty"`
	// GuestRequested is the memory that the spec asks for.
	// +optional
	GuestRequested *resource.Quantity `json:"guestRequested,omitempty"`
	// MemoryOverhead is what the launcher pod books for QEMU and the launcher, besides the guest's memory. The pod requests
	// it, unless the guest overcommits its overhead.
	// +optional
	MemoryOverhead *resource.Quantity `json:"memoryOverhead,omitempty"`
}
