package v1

import (
	"math/bits"

	"k8s.io/utils/ptr"
)

// DriverCache is how a disk's data is cached on the host.
type DriverCache string

// Cache modes.
const (
	// CacheNone: the host's page cache holds none of the guest's data (O_DIRECT).
	CacheNone DriverCache = "none"
	// CacheWriteThrough: the page cache is used, and each write reaches the disk before the guest
	// is told that it is done.
	CacheWriteThrough DriverCache = "writethrough"
	// CacheWriteBack: the page cache is used, and what is in it reaches the disk when the guest
	// flushes.
	CacheWriteBack DriverCache = "writeback"
)

// DriverIO is how QEMU reads and writes a disk's image.
type DriverIO string

// I/O modes.
const (
	// IONative is Linux' asynchronous I/O (io_submit).
	IONative DriverIO = "native"
	// IOThreads are threads of QEMU's own pool.
	IOThreads DriverIO = "threads"
	// IOURing is Linux' io_uring.
	IOURing DriverIO = "io_uring"
)

// DiskErrorPolicy is what QEMU does when a read or a write fails on the host.
type DiskErrorPolicy string

// Error policies.
const (
	// DiskErrorPolicyStop pauses the guest.
	DiskErrorPolicyStop DiskErrorPolicy = "stop"
	// DiskErrorPolicyIgnore tells the guest that all went well.
	DiskErrorPolicyIgnore DiskErrorPolicy = "ignore"
	// DiskErrorPolicyReport tells the guest of the error.
	DiskErrorPolicyReport DiskErrorPolicy = "report"
	// DiskErrorPolicyEnospace pauses the guest if the host has no room, and else tells the guest
	// of the error.
	DiskErrorPolicyEnospace DiskErrorPolicy = "enospace"
)

// BlockSize is the size of the disk's sectors.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.custom) && has(self.matchVolume) && (!has(self.matchVolume.enabled) || self.matchVolume.enabled))",message="block sizes are either custom or those of the volume, not both"
type BlockSize struct {
	// Custom sizes.
	// +optional
	Custom *CustomBlockSize `json:"custom,omitempty"`
	// MatchVolume takes the sizes of the volume's device, or the block size of its file system.
	// +optional
	MatchVolume *FeatureState `json:"matchVolume,omitempty"`
}

// CustomBlockSize has sizes in bytes: powers of two from 512 to 2097152.
type CustomBlockSize struct {
	// Logical size: the least that the guest can read or write. At most the physical size. On
	// sata it must be 512.
	// +kubebuilder:validation:Minimum=512
	// +kubebuilder:validation:Maximum=2097152
	Logical uint32 `json:"logical"`
	// Physical size: the least that the disk writes at once.
	// +kubebuilder:validation:Minimum=512
	// +kubebuilder:validation:Maximum=2097152
	Physical uint32 `json:"physical"`
	// DiscardGranularity is the least that the guest can discard, a multiple of the logical size, or 0: the
	// guest can discard nothing. Default: QEMU's.
	// +optional
	// +kubebuilder:validation:Maximum=1073741824
	DiscardGranularity *uint32 `json:"discardGranularity,omitempty"`
}

// Bounds of block sizes, in bytes: those of QEMU (hw/core/qdev-properties-system.c).
const (
	MinBlockSize = 512
	MaxBlockSize = 2 << 20
)

// IsBlockSize reports whether a number of bytes can be the size of a block.
func IsBlockSize(bytes int64) bool {
	return bytes >= MinBlockSize && bytes <= MaxBlockSize && bits.OnesCount64(uint64(bytes)) == 1
}

// MatchesVolume reports whether the disk takes its block sizes from its volume.
func (b *BlockSize) MatchesVolume() bool {
	return b != nil && b.MatchVolume != nil && ptr.Deref(b.MatchVolume.Enabled, true)
}

// IsShared reports whether guests share the disk.
func (d *Disk) IsShared() bool { return ptr.Deref(d.Shareable, false) }
