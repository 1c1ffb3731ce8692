package qemuargs

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// DiskDriver is the QEMU device a disk is shown by.
type DiskDriver string

// Disk drivers.
const (
	VirtioBlk DiskDriver = "virtio-blk-pci-non-transitional"
	IDEDisk   DiskDriver = "ide-hd"
	IDECD     DiskDriver = "ide-cd"
	SCSIDisk  DiskDriver = "scsi-hd"
	SCSICD    DiskDriver = "scsi-cd"
)

// Disk is a device and the image behind it.
type Disk struct {
	Name     string     `json:"name"`
	Driver   DiskDriver `json:"driver"`
	Serial   string     `json:"serial,omitempty"`
	ReadOnly bool       `json:"readOnly,omitempty"`
	// BootIndex 0 means none.
	BootIndex uint32 `json:"bootIndex,omitempty"`
	// PCI is set for virtio-blk, Bus for drives on a SATA or SCSI controller.
	PCI *PCIAddress `json:"pci,omitempty"`
	Bus string      `json:"bus,omitempty"`
	// LUN is the drive's logical unit number on a SCSI controller.
	LUN *int `json:"lun,omitempty"`
	// USBPort of the USB controller, from 1; 0 for a disk that is not on USB.
	USBPort int `json:"usbPort,omitempty"`
	// Queues of a virtio-blk device, and the entries of each.
	Queues    int `json:"queues,omitempty"`
	QueueSize int `json:"queueSize,omitempty"`
	// WriteThrough: the guest's drive has no write cache: QEMU flushes after each write.
	WriteThrough bool        `json:"writeThrough,omitempty"`
	AIO          AIO         `json:"aio,omitempty"`
	OnError      OnError     `json:"onError,omitempty"`
	Shared       bool        `json:"shared,omitempty"` // other QEMUs may write too
	Blocks       *BlockSizes `json:"blocks,omitempty"`
	NoDiscard    bool        `json:"noDiscard,omitempty"` // the guest of a virtio-blk device can discard nothing
	// IOThread serves the disk, or IOThreadPool its queues; a disk without either is served by QEMU's main loop.
	IOThread     string   `json:"ioThread,omitempty"`
	IOThreadPool []string `json:"ioThreadPool,omitempty"`
	// Image is what the guest reads.
	Image Image `json:"image"`
	// Overlay, if set, takes all writes, and Image is only read. The
	// launcher makes it before QEMU starts.
	Overlay *Overlay `json:"overlay,omitempty"`
}

// ImageFormat is a QEMU block driver. QEMU never probes it.
type ImageFormat string

// Image formats.
const (
	Raw   ImageFormat = "raw"
	QCOW2 ImageFormat = "qcow2"
)

// Image is a disk image file.
type Image struct {
	Path   string      `json:"path"`
	Format ImageFormat `json:"format"`
	// Direct opens the file with O_DIRECT, so that the host's page cache
	// does not hold the guest's data a second time.
	Direct bool `json:"direct,omitempty"`
	// Create is the virtual size, in bytes, of an image that the launcher makes, empty, before
	// QEMU starts; 0 for an image that exists. In a volume, the launcher never replaces an
	// existing file.
	Create int64 `json:"create,omitempty"`
	// Packed is the size, in bytes, of an image that the launcher has made of the files of a config volume before it knew of the
	// Machine; 0 for any other image.
	Packed int64 `json:"packed,omitempty"`
	// Volume, if set, says that the image lies where others than the launcher may write too.
	// The launcher opens it, and QEMU gets a descriptor: QEMU uses that file, whatever becomes
	// of the path meanwhile. QEMU locks the file.
	Volume VolumeMode `json:"volume,omitempty"`
}

// VolumeMode is what an image in a volume is.
type VolumeMode string

// Volume modes.
const (
	// FileVolume: Path is a file in the root of a volume.
	FileVolume VolumeMode = "file"
	// BlockVolume: Path is a block device.
	BlockVolume VolumeMode = "block"
)

// Overlay is a qcow2 file over an Image.
type Overlay struct {
	Path string `json:"path"`
	// VirtualSize of the disk in bytes.
	VirtualSize int64 `json:"virtualSize"`
	Direct      bool  `json:"direct,omitempty"`
}

type blockCache struct {
	Direct bool `json:"direct"`
}

// The images' nodes and the overlay's are of different types, because their properties come
// from different parts of the Machine.

type imageFile struct {
	Driver   string     `json:"driver" from:"volume" rule:"a file, unless the volume is a device"`
	NodeName string     `json:"node-name" from:"../name,../overlay"`
	Filename string     `json:"filename" from:"path,volume"`
	ReadOnly bool       `json:"read-only" from:"../readOnly,../overlay"`
	Discard  string     `json:"discard,omitempty" from:"../readOnly,../overlay,../noDiscard"`
	Cache    blockCache `json:"cache" from:"direct"`
	AIO      AIO        `json:"aio,omitempty" from:"../aio"`
	// Locking is QEMU's image locking, by open file description locks.
	Locking string `json:"locking,omitempty" from:"volume"`
}

type imageNode struct {
	Driver   ImageFormat `json:"driver" from:"format"`
	NodeName string      `json:"node-name" from:"../name,../overlay"`
	ReadOnly bool        `json:"read-only" from:"../readOnly,../overlay"`
	Discard  string      `json:"discard,omitempty" from:"../readOnly,../overlay,../noDiscard"`
	Cache    blockCache  `json:"cache" from:"direct"`
	File     string      `json:"file" from:"../name,../overlay"`
	// Backing is JSON null (no backing file, whatever the image's header says), or left out
	// where the driver knows no such thing.
	Backing any `json:"backing,omitempty" from:"format" rule:"no other file, whatever the image's header says"`
}

type overlayFile struct {
	Driver   string     `json:"driver" rule:"an overlay is a file"`
	NodeName string     `json:"node-name" from:"../name"`
	Filename string     `json:"filename" from:"path"`
	ReadOnly bool       `json:"read-only" rule:"the overlay takes all writes"`
	Discard  string     `json:"discard" from:"../noDiscard" rule:"what the guest discards takes no room"`
	Cache    blockCache `json:"cache" from:"direct"`
	AIO      AIO        `json:"aio,omitempty" from:"../aio"`
}

type overlayNode struct {
	Driver   ImageFormat `json:"driver" rule:"only qcow2 has a backing file"`
	NodeName string      `json:"node-name" from:"../name"`
	ReadOnly bool        `json:"read-only" rule:"the overlay takes all writes"`
	Discard  string      `json:"discard" from:"../noDiscard" rule:"what the guest discards takes no room"`
	Cache    blockCache  `json:"cache" from:"direct"`
	File     string      `json:"file" from:"../name"`
	Backing  string      `json:"backing" from:"../name"`
}

// nodeName is the node's name: the disk's id, and after a dot, which no disk's
// name holds, what the node is to it. An id that would exceed QEMU's limit of
// 31 bytes for node names is cut, and a hash keeps it unique.
func (d Disk) nodeName(role string) string {
	const limit = 31
	suffix := ""
	if role != "" {
		suffix = "." + role
	}
	if name := d.ID() + suffix; len(name) <= limit {
		return name
	}
	sum := sha256.Sum256([]byte(d.Name))
	suffix = "." + hex.EncodeToString(sum[:4]) + suffix
	return d.ID()[:limit-len(suffix)] + suffix
}

// IsVirtio says whether the disk is a virtio-blk device.
func (d Disk) IsVirtio() bool { return d.PCI != nil }

// ID is the QEMU device id of the disk.
func (d Disk) ID() string { return "disk-" + d.Name }

// NodeName is the name of the block node that the device opens.
func (d Disk) NodeName() string { return d.nodeName("") }

// args are the disk's; files are those that QEMU inherits.
func (d Disk) args(files descriptors) []Arg {
	var args []Arg
	of := Part{Field: "disks", Name: d.Name}
	image, overlay := of, of
	image.Below, overlay.Below = "image", "overlay"
	file, inVolume := files[Inherited{Kind: InheritedDisk, Name: d.Name}]
	if inVolume {
		_, arg := inheritedSet(file)
		arg.Of, arg.From = image, "volume"
		args = append(args, arg)
	}
	for _, node := range d.Blockdevs(file) {
		arg := Arg{Flag: "-blockdev", Value: node, Of: image}
		switch node.(type) {
		case overlayFile, overlayNode:
			arg.Of = overlay
		}
		args = append(args, arg)
	}
	args = append(args, d.bridge(of)...)
	return append(args, Arg{Flag: "-device", Value: d.Device(), Of: of})
}

// Blockdevs are the -blockdev nodes of the disk, each before the one that
// refers to it. The last is the one the device opens. An image in a volume is
// named by the set of its file descriptor.
func (d Disk) Blockdevs(fdset int) []any {
	if d.Image.Volume != "" {
		d.Image.Path = fmt.Sprintf("/dev/fdset/%d", fdset)
	}
	if d.Overlay == nil {
		return d.Image.nodes(d, "", d.ReadOnly)
	}
	cache := blockCache{Direct: d.Overlay.Direct}
	file := overlayFile{Driver: "file", NodeName: d.nodeName("file"), Filename: d.Overlay.Path, Discard: d.discards(), Cache: cache, AIO: d.AIO}
	top := overlayNode{Driver: QCOW2, NodeName: d.nodeName(""), Discard: d.discards(), Cache: cache,
		File: file.NodeName, Backing: d.nodeName("base")}
	return append(d.Image.nodes(d, "base", true), file, top)
}

// nodes are the image's two nodes; role is what the upper one is to the disk.
func (i Image) nodes(d Disk, role string, readOnly bool) []any {
	cache := blockCache{Direct: i.Direct}
	fileRole := "file"
	if role != "" {
		fileRole = role + "file"
	}
	file := imageFile{Driver: "file", NodeName: d.nodeName(fileRole), Filename: i.Path, ReadOnly: readOnly, Cache: cache, AIO: d.AIO}
	format := imageNode{Driver: i.Format, NodeName: d.nodeName(role), ReadOnly: readOnly, Cache: cache, File: file.NodeName}
	if i.Volume != "" {
		file.Locking = "on"
	}
	if i.Volume == BlockVolume {
		file.Driver = "host_device"
	}
	if !readOnly {
		file.Discard, format.Discard = d.discards(), d.discards()
	}
	if i.Format == QCOW2 {
		format.Backing = json.RawMessage("null")
	}
	return []any{file, format}
}

// discards is what QEMU's block nodes do with what the guest discards. A disk of which nothing can be discarded ignores it: a guest can ask
// for zeroes that may be unmapped (virtio's WRITE_ZEROES) although the device offers no discard.
func (d Disk) discards() string {
	if d.NoDiscard {
		return "ignore"
	}
	return "unmap"
}

// scsiID is the text of a SCSI drive's device identification page, of which Linux makes the
// names in /dev/disk/by-id. QEMU itself would refuse to take it from a serial number of more
// than 20 bytes, and a drive without a serial number would have none. The text is that of
// KubeVirt's guests: libvirt makes it of KubeVirt's id for the disk.
func (d Disk) scsiID() string {
	if d.Serial != "" {
		return d.Serial
	}
	return "drive-ua-" + d.Name
}

type diskProps struct {
	Driver    DiskDriver    `json:"driver" from:"driver"`
	ID        string        `json:"id" from:"name"`
	Bus       string        `json:"bus" from:"pci,bus,name,driver"`
	Addr      string        `json:"addr,omitempty" from:"pci"`
	Port      string        `json:"port,omitempty" from:"usbPort,bus,driver"`
	Removable *bool         `json:"removable,omitempty" from:"bus,driver" rule:"a disk on USB stays in its drive"`
	Unit      *int          `json:"unit,omitempty" from:"pci,lun,bus" rule:"each SATA bus has one drive"`
	SCSIID    *int          `json:"scsi-id,omitempty" from:"lun,bus,driver" rule:"the drives differ by their logical unit number, or a drive is alone"`
	LUN       *int          `json:"lun,omitempty" from:"lun,bus,driver"`
	DeviceID  string        `json:"device_id,omitempty" from:"serial,name,lun,driver" rule:"the serial number, or without one the id that KubeVirt's guests see"`
	Queues    int           `json:"num-queues,omitempty" from:"queues"`
	QueueSize int           `json:"queue-size,omitempty" from:"queueSize"`
	Drive     string        `json:"drive" from:"name"`
	Serial    string        `json:"serial,omitempty" from:"serial"`
	BootIndex uint32        `json:"bootindex,omitempty" from:"bootIndex"`
	Logical   uint32        `json:"logical_block_size,omitempty" from:"blocks.logical"`
	Physical  uint32        `json:"physical_block_size,omitempty" from:"blocks.physical"`
	Discard   *uint32       `json:"discard_granularity,omitempty" from:"blocks.discardGranularity"`
	NoDiscard *bool         `json:"discard,omitempty" from:"noDiscard"`
	ShareRW   bool          `json:"share-rw,omitempty" from:"shared"`
	IOThread  string        `json:"iothread,omitempty" from:"ioThread"`
	IOThreads []queueThread `json:"iothread-vq-mapping,omitempty" from:"ioThreadPool"`
	WriteBack string        `json:"write-cache,omitempty" from:"writeThrough,driver"`
	WError    string        `json:"werror,omitempty" from:"onError"`
	RError    string        `json:"rerror,omitempty" from:"onError"`
}

// Device is the -device of the disk.
func (d Disk) Device() any {
	p := diskProps{Driver: d.Driver, ID: d.ID(), Bus: d.Bus, Queues: d.Queues, QueueSize: d.QueueSize, Drive: d.nodeName(""), Serial: d.Serial, BootIndex: d.BootIndex,
		IOThread: d.IOThread, IOThreads: queueThreads(d.IOThreadPool), ShareRW: d.Shared}
	if d.Driver != SCSIBlock { // what the guest sees of that one is the device's own
		p.WriteBack = onOff(!d.WriteThrough)
	}
	p.WError, p.RError = d.OnError.policies()
	if b := d.Blocks; b != nil {
		p.Logical, p.Physical, p.Discard = b.Logical, b.Physical, b.DiscardGranularity
	}
	if d.NoDiscard {
		p.NoDiscard = new(bool)
	}
	if d.Bus == USBBus {
		d.onUSB(&p)
		return p
	}
	zero := 0
	if d.PCI != nil {
		p.Bus, p.Addr = d.PCI.Bus, d.PCI.addr()
	}
	if d.LUN != nil {
		p.SCSIID, p.LUN = &zero, d.LUN
		if d.Driver != SCSIBlock {
			p.DeviceID = d.scsiID()
		}
	}
	if d.PCI == nil && d.LUN == nil {
		p.Unit = &zero // each AHCI bus has one drive
	}
	return p
}
