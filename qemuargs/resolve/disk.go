package resolve

import (
	"cmp"
	"fmt"
	pathpkg "path"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// drivesPerController is the number of ports of an ICH9 AHCI controller.
const drivesPerController = 6

// The list in the VMI, and the fields that say what buses its disks are on: of all disks, and of
// those up to the one that is decided about.
const (
	diskList    = "spec.domain.devices.disks"
	drives      = diskList + "[*].disk.bus " + diskList + "[*].cdrom.bus " + diskList + "[*].lun"
	drivesSoFar = diskList + "[..].disk.bus " + diskList + "[..].cdrom.bus " + diskList + "[..].lun"
)

// oneQueuePerCPU is the rule of blockQueues.
const oneQueuePerCPU = "one queue for each virtual CPU"

// disks resolves the disks into m, with the controllers that they need besides the chipset's.
func disks(vmi *v1.VirtualMachineInstance, host Host, m *qemuargs.Machine, slots *allocator, why *Decisions) field.ErrorList {
	var errs field.ErrorList
	volumes := map[string]int{}
	for i, v := range vmi.Spec.Volumes {
		volumes[v.Name] = i
	}
	buses := &diskBuses{slots: slots, queues: blockQueues(vmi), usb: usbInputs(&vmi.Spec.Domain.Devices) + len(ownInputs(vmi, nil)), transitional: vmi.Spec.Domain.Devices.Transitional()}
	for i, d := range vmi.Spec.Domain.Devices.Disks {
		by := entry{to: why, list: "disks", name: d.Name, field: diskList, index: i, volume: volumes[d.Name]}
		disk := device(&d, by)
		bus, _ := d.Target()
		buses.place(&disk, &d, bus, by)
		path := field.NewPath("spec", "volumes").Index(by.volume)
		if err := source(&disk, vmi.Spec.Volumes[by.volume], host, path, by); err != nil {
			errs = append(errs, err)
		}
		errs = append(errs, tuning(&disk, &d, &vmi.Spec.Volumes[by.volume], host, field.NewPath("spec", "domain", "devices", "disks").Index(i), by)...)
		m.Disks = append(m.Disks, disk)
	}
	sata := &buses.sata
	m.SATA, m.AHCI = sata.used > 0, sata.controllers(why)
	why.add("sata", drives, "the chipset's SATA controller is there if a disk is on bus sata")
	if len(m.AHCI) > maxAHCI {
		errs = append(errs, field.Invalid(field.NewPath("spec", "domain", "devices", "disks"), "", fmt.Sprintf("%d disks on bus sata, at most %d fit", sata.used, (maxAHCI+1)*drivesPerController)))
	}
	if buses.luns > 0 {
		m.SCSI = &qemuargs.SCSI{Queues: buses.queues, QueueSize: queueSize, PCI: integrated(scsiSlot), Transitional: buses.transitional}
		why.add("scsi.transitional", transitionalField, "")
		why.add("scsi", drives, "disks on bus scsi need a controller")
		why.add("scsi.queues", vcpus, oneQueuePerCPU)
		why.add("scsi.queueSize", "", queueSizeRule)
		why.add("scsi.pci", "", ownSlot)
	}
	if err := ioThreads(vmi, host, m, why); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// device is the disk without its place and its image.
func device(d *v1.Disk, by entry) qemuargs.Disk {
	by.add("", ".name", "each disk shows the volume of its name")
	by.add("name", ".name", "")
	by.add("serial", ".serial", "")
	by.add("bootIndex", ".bootOrder", "")
	by.add("driver", ".disk.bus .cdrom.bus .lun", "")
	by.add("readOnly", ".disk.readonly .cdrom", "a CD-ROM is only read, and a hard disk where it says so")
	bus, readOnly := d.Target()
	return qemuargs.Disk{Name: d.Name, Serial: d.Serial, BootIndex: ptr.Deref(d.BootOrder, 0), Driver: diskDriver(bus, d), ReadOnly: readOnly}
}

// diskBuses give the disks their places, in the order of the calls.
type diskBuses struct {
	slots  *allocator
	sata   sataBus
	luns   int // of the SCSI controller
	usb    int // ports of the USB controller that are taken
	queues int // of a disk on bus virtio

	transitional bool
}

func (b *diskBuses) place(disk *qemuargs.Disk, d *v1.Disk, bus v1.DiskBus, by entry) {
	// A disk has no place on the buses that it is not on.
	for _, place := range []string{"pci", "bus", "lun", "usbPort", "queues", "queueSize"} {
		by.add(place, ".disk.bus .cdrom.bus", "")
	}
	switch bus {
	case v1.DiskBusVirtio:
		address := b.address(disk, d, by)
		disk.PCI, disk.Queues, disk.QueueSize = &address, b.queues, queueSize
		by.add("queues", ".disk.bus .cdrom.bus "+vcpus, oneQueuePerCPU)
		by.add("queueSize", ".disk.bus .cdrom.bus", queueSizeRule)
	case v1.DiskBusSCSI:
		disk.Bus, disk.LUN = qemuargs.SCSIBus, ptr.To(b.luns)
		by.add("bus", ".disk.bus .cdrom.bus", "the SCSI controller's")
		by.add("lun", drivesSoFar, "the next number on the controller, in the order of the disks")
		b.luns++
	case v1.DiskBusUSB:
		b.usb++
		disk.Bus, disk.USBPort = qemuargs.USBBus, b.usb
		by.add("bus", ".disk.bus .cdrom.bus", "the USB controller's")
		by.add("usbPort", drivesSoFar+" spec.domain.devices.inputs[*].bus", "the next port of the USB controller: inputs come first")
	default:
		disk.Bus = b.sata.next()
		by.add("bus", drivesSoFar, "the next SATA port, in the order of the disks")
	}
}

// blockQueues is the number of queues of a disk or controller: one for each virtual CPU. QEMU
// takes the same number by itself (virtio_pci_optimal_num_queues in hw/virtio/virtio-pci.c),
// and so KubeVirt's guests have it. It is written down because QEMU counts the CPUs at its
// start: elsewhere, a machine with hotplugged CPUs would get another number of queues.
func blockQueues(vmi *v1.VirtualMachineInstance) int {
	return int(vmi.Spec.Domain.CPU.VCPUs())
}

func diskDriver(bus v1.DiskBus, d *v1.Disk) qemuargs.DiskDriver {
	cdrom := d.CDRom != nil
	switch {
	case d.Lun != nil:
		return qemuargs.SCSIBlock
	case bus == v1.DiskBusUSB && cdrom:
		return qemuargs.SCSICD
	case bus == v1.DiskBusUSB:
		return qemuargs.USBDisk
	case bus == v1.DiskBusVirtio:
		return qemuargs.VirtioBlk
	case bus == v1.DiskBusSCSI && cdrom:
		return qemuargs.SCSICD
	case bus == v1.DiskBusSCSI:
		return qemuargs.SCSIDisk
	case cdrom:
		return qemuargs.IDECD
	}
	return qemuargs.IDEDisk
}

// source fills in the image behind a disk.
func source(disk *qemuargs.Disk, volume v1.Volume, host Host, path *field.Path, by entry) *field.Error {
	if volume.CloudInit() != nil {
		by.add("image", "volume.name volume.cloudInitNoCloud volume.cloudInitConfigDrive", "the volume is a cloud-init seed")
		by.add("image.path", "volume.name", "the seed that the launcher makes")
		by.add("image.format", "", "the seed that the launcher makes is raw")
		by.add("image.direct", "", "the seed lies in memory, where O_DIRECT means nothing")
		// The seed lies in memory, where O_DIRECT means nothing.
		disk.Image = qemuargs.Image{Path: layout.Below(host.Root, layout.CloudInit(volume.Name)), Format: qemuargs.Raw}
		return nil
	}
	if volume.IsConfig() {
		return config(disk, &volume, host, path, by)
	}
	if e := volume.EmptyDisk; e != nil {
		by.add("image", "volume.name volume.emptyDisk", "the launcher makes the disk")
		by.add("image.path", "volume.name", "the file that the launcher makes")
		by.add("image.format", "", "a qcow2 file takes only what the guest has written")
		by.add("image.direct", "host.overlayDirect", withoutPageCache)
		size := sectors(e.Capacity.Value())
		disk.Image = qemuargs.Image{Path: layout.Below(host.Root, layout.Overlay(volume.Name)), Format: qemuargs.QCOW2, Create: size, Direct: host.OverlayDirect}
		return nil
	}
	if source := volume.Claim(); source != nil {
		if source.Overlay {
			path = path.Child("ephemeral")
		}
		return claim(disk, volume.Name, *source, host, path.Child("persistentVolumeClaim"), by)
	}
	if volume.HostDisk != nil {
		return hostDisk(disk, volume, host, path.Child("hostDisk", "path"), by)
	}
	path = path.Child("containerDisk")
	image := volume.ContainerDisk.Image
	facts, ok := host.ContainerDisks[volume.Name]
	switch {
	case !ok:
		return field.Invalid(path, image, "the launcher has not inspected it")
	case facts.Error != "":
		return field.Invalid(path, image, facts.Error)
	case facts.VirtualSize%512 != 0:
		return field.Invalid(path, image, fmt.Sprintf("its size, %d bytes, is not a multiple of 512; make it longer: truncate -s %%512 FILE", facts.VirtualSize))
	}
	disk.Image = qemuargs.Image{Path: facts.Path, Format: facts.Format, Direct: facts.Direct}
	by.add("image", "volume.name volume.containerDisk", "")
	by.add("image.path", "volume.name volume.containerDisk.image volume.containerDisk.path host.containerDisks[].path", foundByLauncher)
	by.add("image.format", "host.containerDisks[].format", "what the launcher has found the image to be")
	by.add("image.direct", "host.containerDisks[].direct", withoutPageCache)
	by.add("overlay", "volume.containerDisk .disk.readonly .cdrom", overlayRule(disk.ReadOnly, "an overlay takes the guest's writes: a container disk is only read"))
	if !disk.ReadOnly {
		by.add("overlay.path", "volume.name", "the file that the launcher makes")
		by.add("overlay.direct", "host.overlayDirect", withoutPageCache)
		disk.Overlay = &qemuargs.Overlay{Path: layout.Below(host.Root, layout.Overlay(volume.Name)), VirtualSize: facts.VirtualSize, Direct: host.OverlayDirect}
	}
	return nil
}

// overlayRule is why an image has an overlay, or why it has none.
func overlayRule(readOnly bool, written string) string {
	if readOnly {
		return "no overlay: the disk is only read"
	}
	return written
}

// withoutPageCache is why O_DIRECT is used.
const withoutPageCache = "O_DIRECT where it works, so that the host's page cache does not hold the guest's data a second time"

// claim fills in the image on a PersistentVolumeClaim.
func claim(disk *qemuargs.Disk, volume string, source v1.VolumeClaim, host Host, path *field.Path, by entry) *field.Error {
	facts, ok := host.Claims[volume]
	switch {
	case !ok:
		return field.Invalid(path, source.Name, "the launcher has not inspected it")
	case facts.Error != "":
		return field.Invalid(path, source.Name, facts.Error)
	case disk.Driver == qemuargs.SCSIBlock && !facts.Block:
		return field.Invalid(path, source.Name, "a LUN needs a claim of mode Block (volumeMode: Block)")
	case disk.Driver == qemuargs.SCSIBlock && !facts.SCSI:
		return field.Invalid(path, source.Name, "the claim's device takes no SCSI commands; use disk instead of lun")
	}
	disk.Image = qemuargs.Image{Path: cmp.Or(facts.Path, pathpkg.Join(layout.Claim(volume), layout.ClaimDisk)), Format: qemuargs.Raw, Direct: facts.Direct, Volume: qemuargs.FileVolume}
	by.add("image", "volume.name volume.persistentVolumeClaim volume.dataVolume volume.ephemeral", "the volume is a claim")
	by.add("image.format", "", "the disk on a claim is always raw")
	by.add("image.direct", "host.claims[].direct", withoutPageCache)
	by.add("image.volume", "host.claims[].block", "QEMU gets a descriptor of the claim's disk: of a device, or of a file that it locks")
	by.add("readOnly", ".disk.readonly .cdrom .lun.readonly volume.persistentVolumeClaim.readOnly", "a CD-ROM is only read, and another disk where it or its volume says so")
	overlay := "no overlay: the volume is not ephemeral"
	if source.Overlay {
		overlay = overlayRule(disk.ReadOnly, "an overlay takes the guest's writes: the volume is ephemeral")
	}
	by.add("overlay", "volume.ephemeral .disk.readonly .cdrom", overlay)
	if facts.Block {
		disk.Image.Path, disk.Image.Volume = cmp.Or(facts.Path, layout.BlockDevice(volume)), qemuargs.BlockVolume
	}
	switch {
	case source.Overlay && !disk.ReadOnly:
		by.add("overlay.path", "volume.name", "the file that the launcher makes")
		by.add("overlay.direct", "host.overlayDirect", withoutPageCache)
		disk.Overlay = &qemuargs.Overlay{Path: layout.Below(host.Root, layout.Overlay(volume)), VirtualSize: sectors(facts.Size), Direct: host.OverlayDirect}
	case source.ReadOnly || disk.ReadOnly:
		disk.ReadOnly = true
	case facts.Missing:
		size, err := newDiskSize(facts)
		if err != nil {
			return field.Invalid(path, source.Name, err.Error())
		}
		disk.Image.Create = size
	}
	return nil
}

// hostDisk fills in the image in a file of the node.
func hostDisk(disk *qemuargs.Disk, volume v1.Volume, host Host, path *field.Path, by entry) *field.Error {
	source := volume.HostDisk
	facts, ok := host.Claims[volume.Name]
	switch {
	case !ok:
		return field.Invalid(path, source.Path, "the launcher has not inspected it")
	case facts.Error != "":
		return field.Invalid(path, source.Path, facts.Error)
	case facts.Missing && source.Type != v1.HostDiskExistsOrCreate:
		return field.Invalid(path, source.Path, "the node has no such file; the type DiskOrCreate would make one")
	}
	disk.Image = qemuargs.Image{Path: pathpkg.Join(layout.Claim(volume.Name), pathpkg.Base(source.Path)), Format: qemuargs.Raw, Direct: facts.Direct, Volume: qemuargs.FileVolume}
	by.add("image", "volume.name volume.hostDisk", "")
	by.add("image.format", "", "a hostDisk is always raw")
	by.add("image.direct", "host.claims[].direct", withoutPageCache)
	by.add("image.volume", "", "QEMU gets a descriptor of the node's file, and locks the file")
	if facts.Missing {
		disk.Image.Create = (source.Capacity.Value() + directBlock - 1) / directBlock * directBlock
		if source.Capacity.Value() > facts.Free {
			return field.Invalid(path, source.Path, fmt.Sprintf("there is no room for its disk of %d bytes: %d are free", source.Capacity.Value(), facts.Free))
		}
	}
	return nil
}

// sectors rounds up to whole sectors of 512 bytes.
func sectors(bytes int64) int64 {
	const sector = 512
	return (bytes + sector - 1) / sector * sector
}

// directBlock is a size, in bytes, of which the size of a raw image must be a multiple on any storage: QEMU does not write to an image past the page cache
// whose size its storage's blocks do not divide ("Image size is not a multiple of request alignment").
const directBlock = 4096

// newDiskSize is the size of a new disk, in bytes: the claim's in whole blocks, or up to a tenth less if the
// file system has less room. A guest whose disk promises more than there is would be stopped
// when the file system is full.
func newDiskSize(facts qemuargs.VolumeFacts) (int64, error) {
	const mib = 1 << 20
	least := facts.DiskSize / 10 * 9 // KubeVirt's pvcTolerateLessSpaceUpToPercent
	size := min(facts.DiskSize, facts.Free/mib*mib)
	if facts.DiskSize < mib || size < least || size < mib {
		return 0, fmt.Errorf("there is no room for its disk: the claim is for one of %d bytes (without what the file system takes for itself), and %d are free", facts.DiskSize, facts.Free)
	}
	return size / directBlock * directBlock, nil
}

// sataBus numbers the buses of AHCI controllers: ide.0 to ide.5 on the q35 chipset's, ahci1.0
// to ahci1.5 on the next, and so on.
type sataBus struct{ used int }

func (b *sataBus) next() string {
	controller, port := b.used/drivesPerController, b.used%drivesPerController
	b.used++
	if controller == 0 {
		return fmt.Sprintf("ide.%d", port)
	}
	return fmt.Sprintf("ahci%d.%d", controller, port)
}

func (b *sataBus) controllers(why *Decisions) []qemuargs.AHCI {
	var out []qemuargs.AHCI
	for n := 1; n*drivesPerController < b.used; n++ {
		out = append(out, qemuargs.AHCI{ID: fmt.Sprintf("ahci%d", n), PCI: packed(ahciSlot, n-1)})
		by := entry{to: why, list: "ahci", name: out[n-1].ID}
		by.add("", drives, "the chipset has six SATA ports; more disks on bus sata need more controllers")
		by.add("id", "", "the controller's number")
		by.add("pci", "", "eight controllers in a slot, from slot 12 on")
	}
	return out
}

// boot makes the first hard disk (or else the first disk) bootable if the spec has no boot
// order.
func boot(devices *v1.Devices, disks []qemuargs.Disk, why *Decisions) {
	const orders = diskList + "[*].bootOrder " + interfaces + "[*].bootOrder"
	ordered := func(order *uint32) bool { return order != nil }
	if slices.ContainsFunc(devices.Disks, func(d v1.Disk) bool { return ordered(d.BootOrder) }) ||
		slices.ContainsFunc(devices.Interfaces, func(nic v1.Interface) bool { return ordered(nic.BootOrder) }) {
		return
	}
	for i := range disks {
		if disks[i].Driver != qemuargs.IDECD && disks[i].Driver != qemuargs.SCSICD {
			disks[i].BootIndex = 1
			by := entry{to: why, list: "disks", name: disks[i].Name, index: i}
			by.add("bootIndex", orders+" "+diskList+"[..].cdrom", "no device has a boot order: the first hard disk is booted")
			return
		}
	}
	if len(disks) > 0 {
		disks[0].BootIndex = 1
		by := entry{to: why, list: "disks", name: disks[0].Name}
		by.add("bootIndex", orders+" "+diskList+"[*].cdrom", "no device has a boot order, and there is no hard disk: the first disk is booted")
	}
}
