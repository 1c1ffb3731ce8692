package v1

import (
	"k8s.io/utils/ptr"
)

// DiskBus is how a disk is attached.
type DiskBus string

// Disk buses.
const (
	// DiskBusVirtio is a virtio-blk PCI device.
	DiskBusVirtio DiskBus = "virtio"
	// DiskBusSATA is a drive on the machine's AHCI controller.
	DiskBusSATA DiskBus = "sata"
	// DiskBusSCSI is a drive on a virtio-scsi controller.
	DiskBusSCSI DiskBus = "scsi"
	// DiskBusUSB is a drive on the USB controller.
	DiskBusUSB DiskBus = "usb"
)

// Disk shows a volume to the guest.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.disk) && has(self.cdrom))",message="a disk is either disk or cdrom, not both"
type Disk struct {
	// Name of the volume it shows.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// BootOrder: the device (disk or interface) with the lowest number is booted first. If any
	// has a number, others are not tried. Each number is unique.
	// +optional
	// +kubebuilder:validation:Minimum=1
	BootOrder *uint32 `json:"bootOrder,omitempty"`
	// Serial number that the guest sees: 256 letters, digits and _ . + - at most; 36 on scsi, 20 on usb.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.+-]*$`
	Serial string `json:"serial,omitempty"`
	// Disk: a hard disk. The default.
	// +optional
	Disk *DiskTarget `json:"disk,omitempty"`
	// CDRom: a CD-ROM drive.
	// +optional
	CDRom *CDRomTarget `json:"cdrom,omitempty"`
	// Cache is none, writethrough or writeback. Default: none if O_DIRECT works on the disk's file or
	// device, else writethrough. A cloud-init seed lies in memory: cache only says whether the guest's
	// drive has a write cache.
	// +optional
	// +kubebuilder:validation:Enum="";none;writethrough;writeback
	Cache DriverCache `json:"cache,omitempty"`
	// IO is native, threads or io_uring. native needs cache none. io_uring needs a node whose seccomp
	// profile lets containers use it. Default: native for a block device, and for a file all of whose room is taken,
	// if cache is none and less than half of the node's room for native I/O (fs.aio-max-nr) is taken; else threads.
	// It means nothing for a cloud-init seed, which lies in memory.
	// +optional
	// +kubebuilder:validation:Enum="";native;threads;io_uring
	IO DriverIO `json:"io,omitempty"`
	// ErrorPolicy is what happens if a read or a write fails on the host. stop pauses the guest; ignore and
	// report tell the guest that all went well, or of the error; enospace pauses the guest if there is no
	// room, and else tells it of the error. Default: stop.
	// +optional
	// +kubebuilder:validation:Enum="";stop;ignore;report;enospace
	ErrorPolicy *DiskErrorPolicy `json:"errorPolicy,omitempty"`
	// DedicatedIOThread gives the disk a thread of QEMU's own. Only on bus virtio. Default: false.
	// +optional
	DedicatedIOThread *bool `json:"dedicatedIOThread,omitempty"`
	// Shareable: other guests may use the disk at the same time. It needs cache none, and a file system in which
	// O_DIRECT works. Default: false.
	// +optional
	Shareable *bool `json:"shareable,omitempty"`
	// Tag is what a cloud-init ConfigDrive (cloudInitConfigDrive) tells the guest about the disk, with its place. Without a ConfigDrive it has no effect.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Tag string `json:"tag,omitempty"`
	// BlockSize is the size of the disk's sectors. Default: 512 bytes.
	// +optional
	BlockSize *BlockSize `json:"blockSize,omitempty"`

	// Lun: a SCSI device of the node.
	// +optional
	Lun *LunTarget `json:"lun,omitempty"`
	// ChangedBlockTracking is refused: not supported yet: there are no backups yet.
	// +optional
	ChangedBlockTracking UnsupportedBool `json:"changedBlockTracking,omitempty" later:"there are no backups yet"`
}

// DiskTarget is a hard disk.
type DiskTarget struct {
	// Bus is virtio, sata, scsi or usb. Default: sata.
	// +optional
	// +kubebuilder:validation:Enum=virtio;sata;scsi;usb
	Bus DiskBus `json:"bus,omitempty"`
	// ReadOnly: the guest cannot write. Refused on sata. Default: false.
	// +optional
	ReadOnly bool `json:"readonly,omitempty"`

	// PciAddress is the disk's place, as 0000:BB:SS.0 in hex: a slot of the root bus (BB is 00), or the slot 00 of the bus
	// behind a root port (BB is 01 to 20). Only on bus virtio. Default: the next root port that is free.
	// +optional
	// +kubebuilder:validation:MaxLength=12
	// +kubebuilder:validation:Pattern=`^([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7])?$`
	PciAddress string `json:"pciAddress,omitempty"`
}

// CDRomTarget is a CD-ROM drive.
type CDRomTarget struct {
	// Bus is sata, scsi or usb. Default: sata.
	// +optional
	// +kubebuilder:validation:Enum=virtio;sata;scsi;usb
	Bus DiskBus `json:"bus,omitempty"`
	// ReadOnly has no effect. Default: true.
	// +optional
	ReadOnly *bool `json:"readonly,omitempty"`
	// Tray must be closed. Default: closed.
	// +optional
	// +kubebuilder:validation:Enum=open;closed
	// +kubebuilder:validation:XValidation:rule="self == 'closed'",message="an open tray is not supported yet"
	Tray string `json:"tray,omitempty"`
}

// Target returns the disk's bus, and whether the guest can only read from it.
func (d *Disk) Target() (bus DiskBus, readOnly bool) {
	switch {
	case d.CDRom != nil:
		return d.CDRom.Bus, true
	case d.Lun != nil:
		return d.Lun.Bus, d.Lun.ReadOnly
	case d.Disk != nil:
		return d.Disk.Bus, d.Disk.ReadOnly
	}
	return "", false
}

func defaultDisks(spec *VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	for i := range devices.Disks {
		d := &devices.Disks[i]
		if d.Disk == nil && d.CDRom == nil && d.Lun == nil {
			d.Disk = &DiskTarget{}
		}
		if d.Disk != nil && d.Disk.Bus == "" {
			d.Disk.Bus = DiskBusSATA
		}
		if d.Lun != nil && d.Lun.Bus == "" {
			d.Lun.Bus = DiskBusSCSI
		}
		if d.CDRom != nil {
			if d.CDRom.Bus == "" {
				d.CDRom.Bus = DiskBusSATA
			}
			if d.CDRom.ReadOnly == nil {
				d.CDRom.ReadOnly = ptr.To(true)
			}
			if d.CDRom.Tray == "" {
				d.CDRom.Tray = "closed"
			}
		}
	}
}
