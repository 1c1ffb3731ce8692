package qemuargs

// ConfigFacts is what the launcher has found in a config volume, of which it has made a disk image.
type ConfigFacts struct {
	// Size of the image, in bytes.
	Size int64 `json:"size,omitempty"`
	// Error says why no image can be made.
	Error string `json:"error,omitempty"`
}

// MaxPacked bounds the size, in bytes, of an image that the launcher makes of a config volume: 1 MiB of
// files, a sector of 2 KiB more for each of 512 files, and what describes the files.
const MaxPacked = 3 << 20

// Carried reports whether a migration carries the disk's image to the target as it is: the guest only reads the image,
// and the target could not make the same one.
func (d Disk) Carried() bool { return d.ReadOnly && d.Image.Packed > 0 }
