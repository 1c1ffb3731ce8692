package validation

import (
	"fmt"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// maxSCSISerial is the longest serial number that QEMU takes for a SCSI disk, and maxUSBSerial for one on a USB bus.
// QEMU's disk there is a SCSI disk behind a bridge, whose device_id is the serial number (hw/scsi/scsi-disk.c,
// hw/usb/dev-storage-classic.c).
const maxSCSISerial, maxUSBSerial = 36, 20

// maxSerial returns the longest serial number of a disk on a bus, or 0 where the schema's bound is all.
func maxSerial(bus v1.DiskBus) int {
	return map[v1.DiskBus]int{v1.DiskBusSCSI: maxSCSISerial, v1.DiskBusUSB: maxUSBSerial}[bus]
}

func validateDisks(spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	volumes := map[string]v1.Volume{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = v
	}
	seen := sets.New[string]()
	for i, d := range spec.Domain.Devices.Disks {
		p := path.Index(i)
		if seen.Has(d.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), d.Name))
		}
		seen.Insert(d.Name)
		volume, ok := volumes[d.Name]
		if !ok {
			errs = append(errs, field.NotFound(p.Child("name"), d.Name+" (no volume of this name in spec.volumes)"))
		}
		if !serialNumber.MatchString(d.Serial) {
			errs = append(errs, field.Invalid(p.Child("serial"), d.Serial, serialRule))
		}
		if bus, _ := d.Target(); maxSerial(bus) > 0 && len(d.Serial) > maxSerial(bus) {
			errs = append(errs, field.TooLong(p.Child("serial"), "", maxSerial(bus)))
		}
		errs = append(errs, validateDiskTarget(&d, p)...)
		errs = append(errs, validateDiskTuning(&d, p)...)
		errs = append(errs, validateLun(&d, &volume, p)...)
		if c := volume.PersistentVolumeClaim; c != nil && c.ReadOnly && d.Disk != nil && d.Disk.Bus == v1.DiskBusSATA {
			errs = append(errs, field.Forbidden(p.Child("disk", "bus"),
				"a SATA hard disk cannot be read-only, and its volume is; use bus virtio or scsi, or a cdrom"))
		}
		if volume.EmptyDisk != nil && (d.CDRom != nil || d.Disk != nil && d.Disk.ReadOnly) {
			errs = append(errs, field.Invalid(p, d.Name, "an emptyDisk that cannot be written to is of no use"))
		}
	}
	return errs
}

func validateDiskTarget(d *v1.Disk, path *field.Path) field.ErrorList {
	disk, cdrom := path.Child("disk"), path.Child("cdrom")
	switch {
	case d.Disk != nil && d.CDRom != nil:
		return field.ErrorList{field.Invalid(path, d.Name, "a disk is either disk or cdrom, not both")}
	case d.Disk != nil && d.Disk.Bus == v1.DiskBusSATA && d.Disk.ReadOnly:
		return field.ErrorList{field.Forbidden(disk.Child("readonly"),
			"a SATA hard disk cannot be read-only; use bus virtio or scsi, or a cdrom")}
	case d.Disk != nil:
		return oneOf(d.Disk.Bus, disk.Child("bus"), v1.DiskBusSATA, v1.DiskBusSCSI, v1.DiskBusUSB, v1.DiskBusVirtio)
	case d.CDRom != nil:
		errs := oneOf(d.CDRom.Bus, cdrom.Child("bus"), v1.DiskBusSATA, v1.DiskBusSCSI, v1.DiskBusUSB)
		return append(errs, oneOf(d.CDRom.Tray, cdrom.Child("tray"), "closed")...)
	}
	return nil
}

// warnDisks names the CD-ROMs that are to be written to.
func warnDisks(disks []v1.Disk, path *field.Path) (out []string) {
	for i, d := range disks {
		if d.CDRom != nil && !ptr.Deref(d.CDRom.ReadOnly, true) {
			out = append(out, fmt.Sprintf("%s has no effect: a CD-ROM is always read-only",
				path.Index(i).Child("cdrom", "readonly")))
		}
	}
	return out
}

// validateBootOrder checks the boot order, which disks and interfaces share.
func validateBootOrder(d *v1.Devices, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var orders []uint32
	check := func(order *uint32, p *field.Path) {
		switch {
		case order == nil:
		case *order == 0 || *order > math.MaxInt32:
			errs = append(errs, field.Invalid(p.Child("bootOrder"), *order, "must be between 1 and 2147483647"))
		case slices.Contains(orders, *order):
			errs = append(errs, field.Duplicate(p.Child("bootOrder"), *order))
		default:
			orders = append(orders, *order)
		}
	}
	for i, disk := range d.Disks {
		check(disk.BootOrder, path.Child("disks").Index(i))
	}
	for i, nic := range d.Interfaces {
		check(nic.BootOrder, path.Child("interfaces").Index(i))
	}
	return errs
}

const maxDiscardGranularity = 1 << 30

// asksBlockSize reports whether the disk asks for block sizes at all.
func asksBlockSize(b *v1.BlockSize) bool { return b != nil && b.Custom != nil || b.MatchesVolume() }

// validateDiskTuning checks how a disk's data is read and written. Whether it can be done so is only known where the
// disk is.
func validateDiskTuning(d *v1.Disk, path *field.Path) field.ErrorList {
	errs := oneOf(d.Cache, path.Child("cache"), "", v1.CacheNone, v1.CacheWriteThrough, v1.CacheWriteBack)
	errs = append(errs, oneOf(d.IO, path.Child("io"), "", v1.IONative, v1.IOThreads, v1.IOURing)...)
	errs = append(errs, oneOf(ptr.Deref(d.ErrorPolicy, ""), path.Child("errorPolicy"), "", v1.DiskErrorPolicyStop,
		v1.DiskErrorPolicyIgnore, v1.DiskErrorPolicyReport, v1.DiskErrorPolicyEnospace)...)
	errs = append(errs, validateTag(d.Tag, path)...)
	bus, _ := d.Target()
	if d.IO == v1.IONative && d.Cache != "" && d.Cache != v1.CacheNone {
		errs = append(errs, field.Forbidden(path.Child("io"),
			fmt.Sprintf("native I/O goes past the page cache, and cache is %s; use cache none, or io threads", d.Cache)))
	}
	if ptr.Deref(d.DedicatedIOThread, false) && bus != v1.DiskBusVirtio {
		errs = append(errs, field.Forbidden(path.Child("dedicatedIOThread"),
			"only a disk on bus virtio can have a thread of its own"))
	}
	if d.IsShared() && d.Cache != "" && d.Cache != v1.CacheNone {
		errs = append(errs, field.Forbidden(path.Child("shareable"),
			fmt.Sprintf("guests that share a disk need cache none, and cache is %s", d.Cache)))
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

func validateBlockSize(d *v1.Disk, path *field.Path) field.ErrorList {
	b := d.BlockSize
	if !asksBlockSize(b) {
		return nil
	}
	if d.CDRom != nil {
		return field.ErrorList{field.Forbidden(path, "a CD-ROM has sectors of 2048 bytes")}
	}
	if d.Disk != nil && d.Disk.Bus == v1.DiskBusUSB {
		return field.ErrorList{field.Forbidden(path, "a disk on bus usb has sectors of 512 bytes; use bus virtio or scsi")}
	}
	c := b.Custom
	if c == nil {
		return nil
	}
	var errs field.ErrorList
	if b.MatchesVolume() {
		errs = append(errs, field.Forbidden(path.Child("matchVolume"),
			"block sizes are either custom or those of the volume, not both"))
	}
	custom := path.Child("custom")
	for _, size := range []struct {
		name  string
		bytes uint32
	}{{"logical", c.Logical}, {"physical", c.Physical}} {
		if !v1.IsBlockSize(int64(size.bytes)) {
			errs = append(errs, field.Invalid(custom.Child(size.name), size.bytes, "must be a power of two from 512 to 2097152"))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	if c.Logical > c.Physical {
		errs = append(errs, field.Invalid(custom.Child("logical"), c.Logical,
			fmt.Sprintf("must not be more than the physical size, %d", c.Physical)))
	}
	if d.Disk != nil && d.Disk.Bus == v1.DiskBusSATA && c.Logical != v1.MinBlockSize {
		errs = append(errs, field.Invalid(custom.Child("logical"), c.Logical,
			"must be 512 on bus sata; use bus virtio or scsi"))
	}
	if g := ptr.Deref(c.DiscardGranularity, 0); g%c.Logical != 0 || g > maxDiscardGranularity {
		errs = append(errs, field.Invalid(custom.Child("discardGranularity"), g,
			"must be a multiple of the logical size, 1073741824 at most"))
	}
	return errs
}

func validateLun(d *v1.Disk, volume *v1.Volume, path *field.Path) field.ErrorList {
	if d.Lun == nil {
		return nil
	}
	p := path.Child("lun")
	if d.Disk != nil || d.CDRom != nil {
		return field.ErrorList{field.Invalid(path, d.Name, "a disk is one of disk, cdrom and lun")}
	}
	errs := oneOf(d.Lun.Bus, p.Child("bus"), v1.DiskBusSCSI)
	if c := volume.Claim(); c == nil || c.Overlay {
		errs = append(errs, field.Forbidden(p, "only a persistentVolumeClaim or a dataVolume, of mode Block, can be a LUN"))
	}
	for _, own := range []struct {
		name string
		set  bool
	}{{"serial", d.Serial != ""}, {"blockSize", asksBlockSize(d.BlockSize)}} {
		if own.set {
			errs = append(errs, field.Forbidden(path.Child(own.name), "the guest sees the LUN's own"))
		}
	}
	if d.Cache != "" && d.Cache != v1.CacheNone {
		errs = append(errs, field.Forbidden(path.Child("cache"), "a LUN goes past the page cache"))
	}
	return errs
}
