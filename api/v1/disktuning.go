package v1

import (
	"fmt"
	"math/bits"

	"k8s.io/apimachinery/pkg/util/validation/field"
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
	MinBlockSize          = 512
	MaxBlockSize          = 2 << 20
	maxDiscardGranularity = 1 << 30
)

// IsBlockSize says whether a number of bytes can be the size of a block.
func IsBlockSize(bytes int64) bool {
	return bytes >= MinBlockSize && bytes <= MaxBlockSize && bits.OnesCount64(uint64(bytes)) == 1
}

// MatchesVolume says whether the disk takes its block sizes from its volume.
func (b *BlockSize) MatchesVolume() bool {
	return b != nil && b.MatchVolume != nil && ptr.Deref(b.MatchVolume.Enabled, true)
}

// asksBlockSize says whether the disk asks for block sizes at all.
func asksBlockSize(b *BlockSize) bool { return b != nil && b.Custom != nil || b.MatchesVolume() }

// IsShared says whether guests share the disk.
func (d *Disk) IsShared() bool { return ptr.Deref(d.Shareable, false) }

// validateDiskTuning checks how a disk's data is read and written. Whether it can be done so is only known where the
// disk is.
func validateDiskTuning(d *Disk, path *field.Path) field.ErrorList {
	errs := oneOf(d.Cache, path.Child("cache"), "", CacheNone, CacheWriteThrough, CacheWriteBack)
	errs = append(errs, oneOf(d.IO, path.Child("io"), "", IONative, IOThreads, IOURing)...)
	errs = append(errs, oneOf(ptr.Deref(d.ErrorPolicy, ""), path.Child("errorPolicy"), "", DiskErrorPolicyStop, DiskErrorPolicyIgnore, DiskErrorPolicyReport, DiskErrorPolicyEnospace)...)
	errs = append(errs, validateTag(d.Tag, path)...)
	bus, _ := d.Target()
	if d.IO == IONative && d.Cache != "" && d.Cache != CacheNone {
		errs = append(errs, field.Forbidden(path.Child("io"), fmt.Sprintf("native I/O goes past the page cache, and cache is %s; use cache none, or io threads", d.Cache)))
	}
	if ptr.Deref(d.DedicatedIOThread, false) && bus != DiskBusVirtio {
		errs = append(errs, field.Forbidden(path.Child("dedicatedIOThread"), "only a disk on bus virtio can have a thread of its own"))
	}
	if d.IsShared() && d.Cache != "" && d.Cache != CacheNone {
		errs = append(errs, field.Forbidden(path.Child("shareable"), fmt.Sprintf("guests that share a disk need cache none, and cache is %s", d.Cache)))
	}
	return append(errs, validateBlockSize(d, path.Child("blockSize"))...)
}

// maxTag bounds what a ConfigDrive tells of a device.
const maxTag = 256

func validateTag(tag string, path *field.Path) field.ErrorList {
	if len(tag) > maxTag {
		return field.ErrorList{field.TooLong(path.Child("tag"), "", maxTag)}
	}
	return nil
}

func validateBlockSize(d *Disk, path *field.Path) field.ErrorList {
	b := d.BlockSize
	if !asksBlockSize(b) {
		return nil
	}
	if d.CDRom != nil {
		return field.ErrorList{field.Forbidden(path, "a CD-ROM has sectors of 2048 bytes")}
	}
	if d.Disk != nil && d.Disk.Bus == DiskBusUSB {
		return field.ErrorList{field.Forbidden(path, "a disk on bus usb has sectors of 512 bytes; use bus virtio or scsi")}
	}
	c := b.Custom
	if c == nil {
		return nil
	}
	var errs field.ErrorList
	if b.MatchesVolume() {
		errs = append(errs, field.Forbidden(path.Child("matchVolume"), "block sizes are either custom or those of the volume, not both"))
	}
	custom := path.Child("custom")
	for _, size := range []struct {
		name  string
		bytes uint32
	}{{"logical", c.Logical}, {"physical", c.Physical}} {
		if !IsBlockSize(int64(size.bytes)) {
			errs = append(errs, field.Invalid(custom.Child(size.name), size.bytes, "must be a power of two from 512 to 2097152"))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	if c.Logical > c.Physical {
		errs = append(errs, field.Invalid(custom.Child("logical"), c.Logical, fmt.Sprintf("must not be more than the physical size, %d", c.Physical)))
	}
	if d.Disk != nil && d.Disk.Bus == DiskBusSATA && c.Logical != MinBlockSize {
		errs = append(errs, field.Invalid(custom.Child("logical"), c.Logical, "must be 512 on bus sata; use bus virtio or scsi"))
	}
	if g := ptr.Deref(c.DiscardGranularity, 0); g%c.Logical != 0 || g > maxDiscardGranularity {
		errs = append(errs, field.Invalid(custom.Child("discardGranularity"), g, "must be a multiple of the logical size, 1073741824 at most"))
	}
	return errs
}
