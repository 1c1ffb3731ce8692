package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

// ReservedOverhead is memory that the pod books besides the guest's, and what QEMU may do with it.
type ReservedOverhead struct {
	// AddedOverhead is added to what the pod books for QEMU itself. Exponents are refused.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9.]{1,20}([KMGTPE]i?|[numk])?$`
	AddedOverhead *resource.Quantity `json:"addedOverhead,omitempty"`
	// MemLock says whether QEMU may lock its memory: Required raises the limit of QEMU's process (RLIMIT_MEMLOCK) to what the pod books.
	// +optional
	// +kubebuilder:validation:Enum=Required;NotRequired
	MemLock MemLock `json:"memLock,omitempty"`
}

// MemLock says whether QEMU locks its memory.
type MemLock string

// MemLocks.
const (
	MemLockRequired    MemLock = "Required"
	MemLockNotRequired MemLock = "NotRequired"
)

// AddedOverhead returns how many bytes the pod books more for QEMU.
func (m *Memory) AddedOverhead() int64 {
	if m.ReservedOverhead == nil || m.ReservedOverhead.AddedOverhead == nil {
		return 0
	}
	return m.ReservedOverhead.AddedOverhead.Value()
}

// LocksMemory reports whether QEMU may lock all of its memory.
func (m *Memory) LocksMemory() bool {
	return m != nil && m.ReservedOverhead != nil && m.ReservedOverhead.MemLock == MemLockRequired
}
