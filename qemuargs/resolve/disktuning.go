package resolve

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// tuning decides how a disk's data is read and written. It comes after source, and path is the disk's in the VMI.
func tuning(disk *qemuargs.Disk, d *v1.Disk, volume *v1.Volume, host Host, path *field.Path, by entry) field.ErrorList {
	disk.Shared = d.IsShared()
	by.add("shared", ".shareable", "")
	disk.OnError = onErrors[ptr.Deref(d.ErrorPolicy, "")]
	by.add("onError", ".errorPolicy", "an I/O error stops the guest before the guest sees it, unless the disk says otherwise")
	var errs field.ErrorList
	for _, err := range []*field.Error{
		caching(disk, d, volume, host, path, by),
		kindOfIO(disk, d, volume, host, path.Child("io"), by),
		blockSizes(disk, d, volume, host, path.Child("blockSize"), by),
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

// inMemory says whether a disk lies in memory, where there is no page cache to be avoided.
func inMemory(volume *v1.Volume) bool { return volume.CloudInit() != nil }

// goesPastCache says whether O_DIRECT works on every file of a disk.
func goesPastCache(d *qemuargs.Disk) bool {
	return d.Image.Direct && (d.Overlay == nil || d.Overlay.Direct)
}

// caching decides between the cache modes. KubeVirt's choice, where the disk has none: none if O_DIRECT works, else
// writethrough. Here a base that is only read may be in the page cache all the same.
func caching(disk *qemuargs.Disk, d *v1.Disk, volume *v1.Volume, host Host, path *field.Path, by entry) *field.Error {
	written, overlay, writtenIs := disk.Image.Direct, disk.Overlay, "image.direct"
	if overlay != nil {
		written, writtenIs = overlay.Direct, "overlay.direct"
	}
	switch {
	case inMemory(volume):
		disk.WriteThrough = d.Cache == v1.CacheWriteThrough
		by.add("writeThrough", ".cache", "the seed lies in memory, and has a write cache unless cache is writethrough")
		return nil
	case d.Cache == "" && !disk.Shared:
		disk.WriteThrough = !written
		by.add("writeThrough", ".cache =disks["+disk.Name+"]."+writtenIs, "no cache mode is named: O_DIRECT, and where that does not work each write goes through to the disk")
		return nil
	case d.Cache == v1.CacheWriteThrough, d.Cache == v1.CacheWriteBack:
		disk.Image.Direct, disk.WriteThrough = false, d.Cache == v1.CacheWriteThrough
		by.add("image.direct", ".cache", "the cache mode keeps the data in the host's page cache")
		by.add("writeThrough", ".cache", "")
		if overlay != nil {
			overlay.Direct = false
			by.add("overlay.direct", ".cache", "the cache mode keeps the data in the host's page cache")
		}
		return nil
	}
	by.add("writeThrough", ".cache", "with cache none the guest flushes")
	if goesPastCache(disk) || disk.Image.Path == "" { // without an image there is another error already
		return nil
	}
	if d.Cache == "" {
		return field.Invalid(path.Child("shareable"), true, "guests that share a disk go past the host's page cache, and O_DIRECT does not work on the disk of volume "+d.Name)
	}
	return field.Invalid(path.Child("cache"), d.Cache, "O_DIRECT does not work on the disk of volume "+d.Name+"; use cache writethrough or writeback, or leave the field out")
}

// kindOfIO decides between the kinds of I/O.
func kindOfIO(disk *qemuargs.Disk, d *v1.Disk, volume *v1.Volume, host Host, path *field.Path, by entry) *field.Error {
	by.add("aio", ".io", "")
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
	case d.IO == v1.IONative && !goesPastCache(disk) && disk.Image.Path != "":
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
	by.add("aio", ".io .cache host.claims[].direct host.claims[].block host.claims[].size host.claims[].taken host.aio.nativePlenty", "no kind is named: native for a device, and for a file that has all of its room, if cache is none and the node has plenty of room for native I/O; else threads")
	return nil
}

// maxSector is the size of a page of a guest of amd64, in bytes. Linux' virtio_blk refuses larger sectors.
const maxSector = 4096

// blockSizes decides what sectors the guest sees.
func blockSizes(disk *qemuargs.Disk, d *v1.Disk, volume *v1.Volume, host Host, path *field.Path, by entry) *field.Error {
	by.add("blocks", ".blockSize", "")
	says := func(fields, rule string) {
		for _, size := range []string{"logical", "physical", "discardGranularity"} {
			by.add("blocks."+size, fields+"."+size, rule)
		}
	}
	switch {
	case d.BlockSize.MatchesVolume():
		path = path.Child("matchVolume")
		facts, are := matched(disk, volume, host)
		says(are, "that of the volume's device, or of the file system that takes the guest's writes")
		switch {
		case disk.Image.Path == "":
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
		by.add("noDiscard", ".blockSize.custom.discardGranularity .disk.bus", "virtio-blk offers to discard, whatever the granularity is")
		says(".blockSize.custom", "")
	}
	return nil
}

// matched are the block sizes of where the guest's writes go, and the fields and facts that say them. The sizes are nil if
// they are not known.
func matched(disk *qemuargs.Disk, volume *v1.Volume, host Host) (sizes *qemuargs.BlockSizes, are string) {
	const enabled = ".blockSize.matchVolume.enabled "
	if facts, ok := host.Claims[volume.Name]; ok && disk.Overlay == nil {
		return facts.Blocks, enabled + "host.claims[].blocks"
	}
	if inMemory(volume) {
		return nil, ""
	}
	return host.OverlayBlocks, enabled + "host.overlayBlocks"
}
