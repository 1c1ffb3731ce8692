package qemuargs

// Facts that only the pod can see. The launcher finds them out and tells virt-handler, and
// package resolve decides by them.

// ImageFacts is what a container disk's image says of itself.
type ImageFacts struct {
	// Path in the launcher's file system; empty for an image that is handed out.
	Path string `json:"path,omitempty"`
	// HandedOut: a container of the pod hands the image out, at layout.ImageSocket.
	HandedOut bool        `json:"handedOut,omitempty"`
	Format    ImageFormat `json:"format,omitempty"`
	// VirtualSize in bytes.
	VirtualSize int64 `json:"virtualSize,omitempty"`
	// Direct: O_DIRECT works on it.
	Direct bool `json:"direct,omitempty"`
	// Error says why it cannot be used.
	Error string `json:"error,omitempty"`
}

// VolumeFacts is what the volume of a PersistentVolumeClaim holds, or a folder of the node.
type VolumeFacts struct {
	// Path of the disk in the launcher's file system; empty means the path in package layout.
	Path string `json:"path,omitempty"`
	// Block: the volume is a device.
	Block bool `json:"block,omitempty"`
	// DiskSize is how large the disk may be, in bytes. The claim says that, not the pod:
	// virt-handler adds it.
	DiskSize int64 `json:"diskSize,omitempty"`
	// Missing: there is no disk yet, and one can be made.
	Missing bool `json:"missing,omitempty"`
	// Size of the disk that is there, in bytes.
	Size int64 `json:"size,omitempty"`
	// Free is what the file system has room for, and Taken what the disk takes of it, in
	// bytes: less than Size where it is sparse.
	Free  int64 `json:"free,omitempty"`
	Taken int64 `json:"taken,omitempty"`
	// Blank: nobody has written to the disk that is there.
	Blank bool `json:"blank,omitempty"`
	// Incoming is the UUID of the machine of which a migration left an incomplete disk there.
	Incoming string `json:"incoming,omitempty"`
	// Direct: O_DIRECT works on it.
	Direct bool `json:"direct,omitempty"`
	// SCSI: the device takes SCSI commands (SG_IO).
	SCSI bool `json:"scsi,omitempty"`
	// Blocks are the sizes of the device's blocks, or twice that of the file system's.
	Blocks *BlockSizes `json:"blocks,omitempty"`
	// Error says why it cannot be used.
	Error string `json:"error,omitempty"`
}

// FullyTaken reports whether the disk has all of its room: a device, or a file without holes.
func (f *VolumeFacts) FullyTaken() bool {
	return f.Block || !f.Missing && f.Size > 0 && f.Taken >= f.Size
}

// Replaceable reports whether a migration of a machine may make a disk in the volume: there is none, or what is
// there is blank, or an earlier migration of the machine left it.
func (f *VolumeFacts) Replaceable(uuid string) bool {
	return !f.Block && (f.Missing || f.Blank || uuid != "" && f.Incoming == uuid)
}

// KernelFacts is what a kernel's image holds.
type KernelFacts struct {
	// Path and Initrd in the launcher's file system.
	Path   string `json:"path,omitempty"`
	Initrd string `json:"initrd,omitempty"`
	// Error says why it cannot be used.
	Error string `json:"error,omitempty"`
}
