package resolve

import (
	"cmp"
	"fmt"
	pathpkg "path"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// drivesPerController is the number of ports of an ICH9 AHCI controller.
const drivesPerController = 6

// disks adds the disks, with the controllers that they need besides the chipset's.
func disks(b *build) {
	volumes := map[string]int{}
	for i, v := range b.vmi.Spec.Volumes {
		volumes[v.Name] = i
	}
	buses := newDiskBuses(b)
	for i, d := range b.devices().Disks {
		disk := device(&d)
		bus, _ := d.Target()
		buses.place(&disk, &d, bus)
		n := volumes[d.Name]
		volume, path := &b.vmi.Spec.Volumes[n], field.NewPath("spec", "volumes").Index(n)
		if err := source(&disk, *volume, b.host, path); err != nil {
			b.errs = append(b.errs, err)
		}
		b.errs = append(b.errs, tuning(&disk, &d, volume, b.host, disksPath.Index(i))...)
		b.m.Disks = append(b.m.Disks, disk)
	}
	buses.controllers(b)
	if err := ioThreads(b.vmi, b.host, b.m); err != nil {
		b.errs = append(b.errs, err)
	}
}

var disksPath = field.NewPath("spec", "domain", "devices", "disks")

func newDiskBuses(b *build) *diskBuses {
	devices := b.devices()
	buses := &diskBuses{slots: b.slots, queues: blockQueues(b.vmi), usb: usbInputs(devices) + len(ownInputs(b.vmi)),
		transitional: devices.Transitional(), luns: map[int]bool{}, running: b.runningDisks()}
	for _, d := range buses.running {
		if d.LUN != nil && d.Bus == qemuargs.SCSIBus {
			buses.luns[*d.LUN] = true
		}
	}
	return buses
}

// controllers adds those of the disks that have their places. A running machine keeps its own.
func (buses *diskBuses) controllers(b *build) {
	sata := &buses.sata
	b.m.SATA, b.m.AHCI = sata.used > 0, sata.controllers()
	if len(b.m.AHCI) > maxAHCI {
		b.errs = append(b.errs, field.Invalid(disksPath, "", fmt.Sprintf("%d disks on bus sata, at most %d fit", sata.used, (maxAHCI+1)*drivesPerController)))
	}
	if len(buses.luns) > 0 {
		b.m.SCSI = &qemuargs.SCSI{Queues: buses.queues, QueueSize: queueSize, PCI: b.scsiPlace(),
			Transitional: buses.transitional}
	}
}

// device returns the disk without its place and its image.
func device(d *v1.Disk) qemuargs.Disk {
	bus, readOnly := d.Target()
	return qemuargs.Disk{Name: d.Name, Serial: d.Serial, BootIndex: ptr.Deref(d.BootOrder, 0), Driver: diskDriver(bus, d), ReadOnly: readOnly}
}

// diskBuses give the disks their places, in the order of the calls.
type diskBuses struct {
	slots  *allocator
	sata   sataBus
	luns   map[int]bool // of the SCSI controller, that are taken
	usb    int          // ports of the USB controller that are taken
	queues int          // of a disk on bus virtio
	// running are the disks of a running machine, which keep their places.
	running map[string]qemuargs.Disk

	transitional bool
}

func (b *diskBuses) place(disk *qemuargs.Disk, d *v1.Disk, bus v1.DiskBus) {
	switch bus {
	case v1.DiskBusVirtio:
		address := b.address(disk, d)
		disk.PCI, disk.Queues, disk.QueueSize = &address, b.queues, queueSize
	case v1.DiskBusSCSI:
		disk.Bus, disk.LUN = qemuargs.SCSIBus, ptr.To(b.lun(d.Name))
	case v1.DiskBusUSB:
		b.usb++
		disk.Bus, disk.USBPort = qemuargs.USBBus, b.usb
	default:
		disk.Bus = b.sata.next()
	}
}

// lun returns the LUN that a disk has, or the first that no disk has.
func (b *diskBuses) lun(disk string) int {
	if was, ok := b.running[disk]; ok && was.LUN != nil && was.Bus == qemuargs.SCSIBus {
		return *was.LUN
	}
	lun := 0
	for b.luns[lun] {
		lun++
	}
	b.luns[lun] = true
	return lun
}

// blockQueues returns the number of queues of a disk or controller: one for each virtual CPU. QEMU
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
func source(disk *qemuargs.Disk, volume v1.Volume, host Host, path *field.Path) *field.Error {
	if volume.CloudInit() != nil {
		// The seed lies in memory, where O_DIRECT means nothing.
		disk.Image = qemuargs.Image{Path: layout.Below(host.Root, layout.CloudInit(volume.Name)), Format: qemuargs.Raw}
		return nil
	}
	if volume.IsConfig() {
		return config(disk, &volume, host, path)
	}
	if e := volume.EmptyDisk; e != nil {
		size := sectors(e.Capacity.Value())
		disk.Image = qemuargs.Image{Path: layout.Below(host.Root, layout.Overlay(volume.Name)), Format: qemuargs.QCOW2, Create: size, Direct: host.OverlayDirect}
		return nil
	}
	if source := volume.Claim(); source != nil {
		if source.Overlay {
			path = path.Child("ephemeral")
		}
		return claim(disk, volume.Name, *source, host, path.Child("persistentVolumeClaim"))
	}
	if volume.HostDisk != nil {
		return hostDisk(disk, volume, host, path.Child("hostDisk", "path"))
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
	disk.Image = containerImage(facts)
	if !disk.ReadOnly {
		disk.Overlay = &qemuargs.Overlay{Path: layout.Below(host.Root, layout.Overlay(volume.Name)), VirtualSize: facts.VirtualSize, Direct: host.OverlayDirect}
	}
	return nil
}

// containerImage returns the image of a container disk, by what was found out of it.
func containerImage(facts qemuargs.ImageFacts) qemuargs.Image {
	image := qemuargs.Image{Path: facts.Path, Format: facts.Format, Direct: facts.Direct}
	if facts.HandedOut {
		image.Path, image.Volume = "", qemuargs.HandedOut
	}
	return image
}

// claim fills in the image on a PersistentVolumeClaim.
func claim(disk *qemuargs.Disk, volume string, source v1.VolumeClaim, host Host, path *field.Path) *field.Error {
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
	if facts.Block {
		disk.Image.Path, disk.Image.Volume = cmp.Or(facts.Path, layout.BlockDevice(volume)), qemuargs.BlockVolume
	}
	switch {
	case source.Overlay && !disk.ReadOnly:
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
func hostDisk(disk *qemuargs.Disk, volume v1.Volume, host Host, path *field.Path) *field.Error {
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

// directBlock is a size, in bytes, of which the size of a raw image must be a multiple on any storage: QEMU does not
// write to an image past the page cache whose size its storage's blocks do not divide ("Image size is not a multiple of
// request alignment").
const directBlock = 4096

// newDiskSize returns the size of a new disk, in bytes: the claim's in whole blocks, or up to a tenth less if the
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

func (b *sataBus) controllers() []qemuargs.AHCI {
	var out []qemuargs.AHCI
	for n := 1; n*drivesPerController < b.used; n++ {
		out = append(out, qemuargs.AHCI{ID: fmt.Sprintf("ahci%d", n), PCI: packed(ahciSlot, n-1)})
	}
	return out
}

// address returns the place of a disk on bus virtio.
func (b *diskBuses) address(disk *qemuargs.Disk, d *v1.Disk) qemuargs.PCIAddress {
	if b.transitional {
		disk.Driver = qemuargs.VirtioBlkTransitional
	}
	part := partOf("disks", d.Name)
	switch {
	case d.Disk.PciAddress != "":
		return b.slots.pin(d.Disk.PciAddress)
	case b.transitional:
		return b.slots.integrate(part)
	}
	return b.slots.plug(part)
}
