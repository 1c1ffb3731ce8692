package qemuargs

import "strconv"

// More disk drivers.
const (
	// VirtioBlkTransitional is also what guests without virtio 1 know.
	VirtioBlkTransitional DiskDriver = "virtio-blk-pci-transitional"
	// USBDisk is a hard disk on the USB controller.
	USBDisk DiskDriver = "usb-storage"
	// SCSIBlock is a SCSI device of the node, which carries out the guest's commands itself.
	SCSIBlock DiskDriver = "scsi-block"
)

// USBBus is the bus of the USB controller.
const USBBus = "usb.0"

// usbBotProps are of a bridge from USB to SCSI. QEMU's usb-storage makes a hard disk of everything that comes by
// -blockdev. So a CD-ROM drive on USB is a SCSI one behind a bridge.
type usbBotProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	Bus    string `json:"bus"`
	Port   string `json:"port"`
}

// bridged reports whether the disk is a SCSI drive behind a bridge on USB.
func (d Disk) bridged() bool { return d.Bus == USBBus && d.Driver != USBDisk }

func (d Disk) bridgeID() string { return "usb-" + d.Name }

// bridge returns the -device that a CD-ROM drive on USB sits on; there is none for other disks.
func (d Disk) bridge() []Arg {
	if !d.bridged() {
		return nil
	}
	return []Arg{{Flag: "-device", Value: usbBotProps{Driver: "usb-bot", ID: d.bridgeID(), Bus: d.Bus, Port: strconv.Itoa(d.USBPort)}}}
}

// onUSB makes the properties those of a disk on USB.
func (d Disk) onUSB(p *diskProps) {
	if d.bridged() {
		zero := 0
		p.Bus, p.SCSIID, p.LUN = d.bridgeID()+".0", &zero, &zero // alone on the bridge
		return
	}
	stays := false
	p.Port, p.Removable = strconv.Itoa(d.USBPort), &stays
}
