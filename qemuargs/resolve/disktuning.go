package resolve

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// tuning decides how a disk's data is read and written. It comes after source, and path is the disk's in the VMI.
func tuning(disk *qemuargs.Disk, d *v1.Disk, volume *v1.Volume, host Host, path *field.Path) field.ErrorList {
	disk.Shared = d.IsShared()
	disk.OnError = onErrors[ptr.Deref(d.ErrorPolicy, "")]
	var errs field.ErrorList
	for _, err := range []*field.Error{
		caching(disk, d, volume, host, path),
		kindOfIO(disk, d, volume, host, path.Child("io")),
		blockSizes(disk, d, volume, host, path.Child("blockSize")),
	} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

var onErrors = map[v1.DiskErrorPolicy]qemuargs.OnError{
	"": qemuargs.Stop, v1.DiskErrorPolicyStop: qemuargs.Stop, v1.DiskErrorPolicyIgnore: qemuargs.Ignore,
	v1.DiskErrorPolicyReport: qemuargs.Report, v1.DiskErrorPolicyEnospace: qemuargs.StopIfFull,
}

// inMemory reports whether a disk lies in memory, where there is no page cache to be avoided.
func inMemory(volume *v1.Volume) bool { return volume.CloudInit() != nil }

// goesPastCache reports whether O_DIRECT works on every file of a disk.
func goesPastCache(d *qemuargs.Disk) bool {
	return d.Image.Direct && (d.Overlay == nil || d.Overlay.Direct)
}

// hasImage reports whether the image of a disk was found. One that is handed out has no path.
func hasImage(d *qemuargs.Disk) bool {
	return d.Image.Path != "" || d.Image.Volume == qemuargs.HandedOut
}

// inPageCache reports whether a disk's owner wants its data in the page cache.
func inPageCache(d *v1.Disk) bool {
	return d.Cache == v1.CacheWriteThrough || d.Cache == v1.CacheWriteBack
}

// caching decides between the cache modes. KubeVirt's choice, where the disk has none: none if O_DIRECT works, else
// writethrough. Here a base that is only read may be in the page cache all the same.
func caching(disk *qemuargs.Disk, d *v1.Disk, volume *v1.Volume, host Host, path *field.Path) *field.Error {
	written, overlay := disk.Image.Direct, disk.Overlay
	if overlay != nil {
		written = overlay.Direct
	}
	switch {
	case inMemory(volume):
		disk.WriteThrough = d.Cache == v1.CacheWriteThrough
		return nil
	case d.Cache == "" && !disk.Shared:
		disk.WriteThrough = !written
		return nil
	case inPageCache(d):
		disk.Image.Direct, disk.WriteThrough = false, d.Cache == v1.CacheWriteThrough
		if overlay != nil {
			overlay.Direct = false
		}
		return nil
	}
	if goesPastCache(disk) || !hasImage(disk) { // without an image there is another error already
		return nil
	}
	if d.Cache == "" {
		return field.Invalid(path.Child("shareable"), true, "guests that share a disk go past the host's page cache, and O_DIRECT does not work on the disk of volume "+d.Name)
	}
	return field.Invalid(path.Child("cache"), d.Cache, "O_DIRECT does not work on the disk of volume "+d.Name+"; use cache writethrough or writeback, or leave the field out")
}

// kindOfIO decides between the kinds of I/O.
func kindOfIO(disk *qemuargs.Disk, d *v1.Disk, volume *v1.Volume, host Host, path *field.Path) *field.Error {
	switch {
	case inMemory(volume):
		return nil // where the kinds of I/O are one
	case d.IO == v1.IOURing && !host.AIO.IOURing:
		return field.Invalid(path, d.IO, "the kernel or the seccomp profile of the node denies io_uring to this pod (the profile RuntimeDefault does); use io native or threads")
	case d.IO == v1.IOURing:
		disk.AIO = qemuargs.IOURing
		return nil
	case d.IO == v1.IOThreads:
		disk.AIO = qemuargs.Threads
		return nil
	case d.IO == v1.IONative && !goesPastCache(disk) && hasImage(disk):
		return field.Invalid(path, d.IO, "native I/O needs O_DIRECT, which does not work on the disk of volume "+d.Name+"; use io threads")
	case d.IO == v1.IONative && !host.AIO.Native:
		return field.Invalid(path, d.IO, "the node has no room left for native I/O; use io threads, or raise the node's fs.aio-max-nr")
	case d.IO == v1.IONative:
		disk.AIO = qemuargs.Native
		return nil
	}
	facts, inVolume := host.Claims[volume.Name]
	if !inVolume || disk.Overlay != nil {
		return nil
	}
	if goesPastCache(disk) && facts.FullyTaken() && host.AIO.NativePlenty {
		disk.AIO = qemuargs.Native
	}
	return nil
}

// maxSector is the size of a page of a guest of amd64, in bytes. Linux' virtio_blk refuses larger sectors.
const maxSector = 4096

// blockSizes decides what sectors the guest sees.
func blockSizes(disk *qemuargs.Disk, d *v1.Disk, volume *v1.Volume, host Host, path *field.Path) *field.Error {
	switch {
	case d.BlockSize.MatchesVolume():
		path = path.Child("matchVolume")
		facts := matched(disk, volume, host)
		switch {
		case !hasImage(disk):
			return nil
		case facts != nil && facts.Logical > maxSector:
			return field.Invalid(path, d.Name, fmt.Sprintf("the volume has blocks of %d bytes, and a guest cannot use sectors larger than its pages of %d bytes; name the sizes in blockSize.custom", facts.Logical, maxSector))
		case facts == nil || !v1.IsBlockSize(int64(facts.Logical)) || !v1.IsBlockSize(int64(facts.Physical)) || facts.Logical > facts.Physical:
			return field.Invalid(path, d.Name, "the volume's block sizes are not known, or are none that a disk can have; name them in blockSize.custom")
		case disk.Driver == qemuargs.IDEDisk && facts.Logical != v1.MinBlockSize:
			return field.Invalid(path, d.Name, fmt.Sprintf("the volume has blocks of %d bytes, and a disk on bus sata has sectors of 512; use bus virtio or scsi", facts.Logical))
		}
		disk.Blocks = &qemuargs.BlockSizes{Logical: facts.Logical, Physical: facts.Physical}
		if g := facts.DiscardGranularity; g != nil && *g > 0 && *g%facts.Logical == 0 {
			disk.Blocks.DiscardGranularity = ptr.To(*g)
		}
	case d.BlockSize != nil && d.BlockSize.Custom != nil:
		c := d.BlockSize.Custom
		disk.Blocks = &qemuargs.BlockSizes{Logical: c.Logical, Physical: c.Physical, DiscardGranularity: c.DiscardGranularity}
		disk.NoDiscard = d.Disk != nil && d.Disk.Bus == v1.DiskBusVirtio && c.DiscardGranularity != nil && *c.DiscardGranularity == 0
	}
	return nil
}

// matched returns the block sizes of where the guest's writes go. The sizes are nil if
// they are not known.
func matched(disk *qemuargs.Disk, volume *v1.Volume, host Host) *qemuargs.BlockSizes {
	if facts, ok := host.Claims[volume.Name]; ok && disk.Overlay == nil {
		return facts.Blocks
	}
	if inMemory(volume) {
		return nil
	}
	return host.OverlayBlocks
}
