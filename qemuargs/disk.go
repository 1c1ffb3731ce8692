package qemuargs

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	// Image is what the guest reads. A CD-ROM drive without a medium has none.
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
	Path   string      `json:"path,omitempty"`
	Format ImageFormat `json:"format"`
	// Direct opens the file with O_DIRECT, so that the host's page cache
	// does not hold the guest's data a second time.
	Direct bool `json:"direct,omitempty"`
	// Create is the virtual size, in bytes, of an image that the launcher makes, empty, before
	// QEMU starts; 0 for an image that exists. In a volume, the launcher never replaces an
	// existing file.
	Create int64 `json:"create,omitempty"`
	// Size, in bytes, is what the image has grown to while the guest runs; 0 if it has the size of the start.
	Size int64 `json:"size,omitempty"`
	// Packed is the size, in bytes, of an image that the launcher has made of the files of a config volume before it knew
	// of the Machine; 0 for any other image.
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
	// HandedOut: a container of the pod hands the image out (layout.ImageSocket), and there is no Path. The guest does not
	// write to it.
	HandedOut VolumeMode = "handed-out"
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

// fileNode is the block node of a file or a device.
type fileNode struct {
	Driver   string     `json:"driver"`
	NodeName string     `json:"node-name"`
	Filename string     `json:"filename"`
	ReadOnly bool       `json:"read-only"`
	Discard  string     `json:"discard,omitempty"`
	Cache    blockCache `json:"cache"`
	AIO      AIO        `json:"aio,omitempty"`
	// Locking is QEMU's image locking, by open file description locks.
	Locking string `json:"locking,omitempty"`
}

// formatNode is the block node of what a file holds.
type formatNode struct {
	Driver   ImageFormat `json:"driver"`
	NodeName string      `json:"node-name"`
	ReadOnly bool        `json:"read-only"`
	Discard  string      `json:"discard,omitempty"`
	Cache    blockCache  `json:"cache"`
	File     string      `json:"file"`
	// Backing is the node below an overlay, or JSON null (no backing file, whatever the image's header says), or left
	// out where the driver knows no such thing.
	Backing any `json:"backing,omitempty"`
}

// nodeName returns the node's name: the disk's id, and after a dot, which no disk's
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

// IsVirtio reports whether the disk is a virtio-blk device.
func (d Disk) IsVirtio() bool { return d.PCI != nil }

// ID returns the QEMU device id of the disk.
func (d Disk) ID() string { return "disk-" + d.Name }

// NodeName returns the name of the block node that the device opens.
func (d Disk) NodeName() string { return d.nodeName("") }

// inherits returns the disk's image, if QEMU does not open it by its path.
func (d Disk) inherits() []Inherited {
	switch d.Image.Volume {
	case "":
		return nil
	case HandedOut:
		return []Inherited{{Kind: InheritedImage, Name: d.Name}}
	}
	return []Inherited{{Kind: InheritedDisk, Name: d.Name}}
}

func (d Disk) args(files files) []Arg {
	args, set := []Arg(nil), 0
	for _, file := range d.inherits() {
		set = files.set(file)
		args = append(args, addSet(files, file))
	}
	if !d.isEmpty() {
		for _, node := range d.Blockdevs(set) {
			args = append(args, Arg{Flag: "-blockdev", Value: node})
		}
	}
	args = append(args, d.bridge()...)
	return append(args, Arg{Flag: "-device", Value: d.Device()})
}

// isEmpty reports whether the disk is a CD-ROM drive without a medium.
func (d Disk) isEmpty() bool { return d.isCD() && d.Image == (Image{}) }

// Blockdevs returns the -blockdev nodes of the disk, each before the one that
// refers to it. The last is the one the device opens. An image in a volume is
// named by the set of its file descriptor.
func (d Disk) Blockdevs(fdset int) []any {
	if d.Image.Volume != "" {
		d.Image.Path = setPath(fdset)
	}
	if d.Overlay == nil {
		return d.Image.nodes(d, "", d.ReadOnly)
	}
	cache := blockCache{Direct: d.Overlay.Direct}
	file := fileNode{Driver: "file", NodeName: d.nodeName("file"), Filename: d.Overlay.Path, Discard: d.discards(), Cache: cache, AIO: d.AIO}
	top := formatNode{Driver: QCOW2, NodeName: d.nodeName(""), Discard: d.discards(), Cache: cache,
		File: file.NodeName, Backing: d.nodeName("base")}
	return append(d.Image.nodes(d, "base", true), file, top)
}

// nodes returns the image's two nodes; role is what the upper one is to the disk.
func (i Image) nodes(d Disk, role string, readOnly bool) []any {
	cache := blockCache{Direct: i.Direct}
	fileRole := "file"
	if role != "" {
		fileRole = role + "file"
	}
	file := fileNode{Driver: "file", NodeName: d.nodeName(fileRole), Filename: i.Path, ReadOnly: readOnly, Cache: cache, AIO: d.AIO}
	format := formatNode{Driver: i.Format, NodeName: d.nodeName(role), ReadOnly: readOnly, Cache: cache, File: file.NodeName}
	if i.Volume != "" && i.Volume != HandedOut {
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

// discards returns what QEMU's block nodes do with what the guest discards. A disk of which nothing can be discarded
// ignores it: a guest can ask for zeroes that may be unmapped (virtio's WRITE_ZEROES) although the device offers no
// discard.
func (d Disk) discards() string {
	if d.NoDiscard {
		return "ignore"
	}
	return "unmap"
}

// scsiID returns the text of a SCSI drive's device identification page, of which Linux makes the
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
	Driver    DiskDriver    `json:"driver"`
	ID        string        `json:"id"`
	Bus       string        `json:"bus"`
	Addr      string        `json:"addr,omitempty"`
	Port      string        `json:"port,omitempty"`
	Removable *bool         `json:"removable,omitempty"`
	Unit      *int          `json:"unit,omitempty"`
	SCSIID    *int          `json:"scsi-id,omitempty"`
	LUN       *int          `json:"lun,omitempty"`
	DeviceID  string        `json:"device_id,omitempty"`
	Queues    int           `json:"num-queues,omitempty"`
	QueueSize int           `json:"queue-size,omitempty"`
	Drive     string        `json:"drive,omitempty"`
	Serial    string        `json:"serial,omitempty"`
	BootIndex uint32        `json:"bootindex,omitempty"`
	Logical   uint32        `json:"logical_block_size,omitempty"`
	Physical  uint32        `json:"physical_block_size,omitempty"`
	Discard   *uint32       `json:"discard_granularity,omitempty"`
	NoDiscard *bool         `json:"discard,omitempty"`
	ShareRW   bool          `json:"share-rw,omitempty"`
	IOThread  string        `json:"iothread,omitempty"`
	IOThreads []queueThread `json:"iothread-vq-mapping,omitempty"`
	WriteBack string        `json:"write-cache,omitempty"`
	WError    string        `json:"werror,omitempty"`
	RError    string        `json:"rerror,omitempty"`
}

// Device returns the -device of the disk.
func (d Disk) Device() any {
	p := diskProps{Driver: d.Driver, ID: d.ID(), Bus: d.Bus, Queues: d.Queues, QueueSize: d.QueueSize, Serial: d.Serial, BootIndex: d.BootIndex,
		IOThread: d.IOThread, IOThreads: queueThreads(d.IOThreadPool), ShareRW: d.Shared}
	if !d.isEmpty() {
		p.Drive = d.nodeName("")
	}
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
