// Package image tells what a disk image is by its first bytes, refuses headers that would make qemu-img
// open anything else or take too much, and makes qemu-img convert an image to raw.
//
// A header is a stranger's input, whatever it says: qemu-img is told the format and never probes it,
// opens the image by the socket of an NBD server, and has backing files turned off. So the checks here
// are the first of two bars. They also find what qemu-img says badly or only when half is written.
package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// ErrUnusable is wrapped by errors that say what is wrong with an image itself.
var ErrUnusable = errors.New("the image cannot be used")

func unusable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnusable, fmt.Errorf(format, args...))
}

// Format is how a file has a disk in it.
type Format string

// The formats. qemu-img has the same names for those that it reads.
const (
	Raw   Format = "raw"
	QCOW2 Format = "qcow2"
	VMDK  Format = "vmdk"
	VHDX  Format = "vhdx"
	VDI   Format = "vdi"
	Gzip  Format = "gzip"
	XZ    Format = "xz"
	Zstd  Format = "zstd"
)

// Compressed says whether the format is another file's, in fewer bytes.
func (f Format) Compressed() bool { return f == Gzip || f == XZ || f == Zstd }

// magic is what a file of a format has at an offset.
type magic struct {
	offset int
	text   string
	format Format
	// refused is why such a file is not taken, if it is not.
	refused string
}

func magics() []magic {
	const archive = "; name a disk image, not an archive"
	return []magic{
		{text: "QFI\xfb", format: QCOW2},
		{text: "KDMV", format: VMDK},
		{text: "vhdxfile", format: VHDX},
		{offset: 0x40, text: "\x7f\x10\xda\xbe", format: VDI},
		{text: "\x1f\x8b", format: Gzip},
		{text: "\xfd7zXZ\x00", format: XZ},
		{text: "\x28\xb5\x2f\xfd", format: Zstd},
		{text: "COWD", refused: "it is a vmdk image of an old version; make it monolithicSparse"},
		{text: "# Disk DescriptorFile", refused: "it is the description of a vmdk image whose content is in other files; make it monolithicSparse"},
		{text: "conectix", refused: "it is a dynamic vhd image; convert it to vhdx or qcow2"},
		{text: "QED\x00", refused: "it is a qed image; convert it to qcow2"},
		{text: "WithoutFreeSpace", refused: "it is a parallels image; convert it to qcow2"},
		{text: "WithouFreSpacExt", refused: "it is a parallels image; convert it to qcow2"},
		{text: "PK\x03\x04", refused: "it is a zip archive" + archive},
		{text: "7z\xbc\xaf\x27\x1c", refused: "it is a 7z archive" + archive},
		{text: "BZh", refused: "it is compressed by bzip2; gzip, xz and zstd are known"},
		{offset: 257, text: "ustar", refused: "it is a tar archive, or an OVA" + archive},
	}
}

// Detect tells the format by the beginning of a file. What has no magic number of another format is
// raw.
func Detect(head []byte) (Format, error) {
	if len(head) == 0 {
		return "", unusable("it is empty")
	}
	for _, m := range magics() {
		if len(head) >= m.offset && bytes.HasPrefix(head[m.offset:], []byte(m.text)) {
			if m.refused != "" {
				return "", unusable("%s", m.refused)
			}
			return m.format, nil
		}
	}
	if isSkippable(head) {
		return Zstd, nil
	}
	start := bytes.ToLower(bytes.TrimLeft(head[:min(len(head), 64)], " \t\r\n\xef\xbb\xbf"))
	if bytes.HasPrefix(start, []byte("<!doctype html")) || bytes.HasPrefix(start, []byte("<html")) {
		return "", unusable("it is a web page; see to the URL")
	}
	return Raw, nil
}

// isSkippable reports whether a file begins with a frame that zstd skips, as those of pzstd do (RFC 8878, 3.1.2).
func isSkippable(head []byte) bool {
	return len(head) >= 4 && head[0]&0xf0 == 0x50 && string(head[1:4]) == "\x2a\x4d\x18"
}

// maxVirtual bounds what a header may claim: 64 TiB.
const maxVirtual = 64 << 40

// Header is what an image's header says.
type Header struct {
	Format Format
	// Size is the disk's.
	Size int64
	// Cluster is in how many bytes at once the disk is in the file. 0 means that QEMU itself looks where
	// the file ends.
	Cluster int64
	// Behind is how many bytes behind that QEMU reads and does not use.
	Behind int64
}

// Check looks at the header of an image of a format that qemu-img converts, in a file of so many bytes.
func Check(format Format, r io.ReaderAt, size int64) (Header, error) {
	check := map[Format]func(*header) (Header, error){QCOW2: qcow2, VMDK: vmdk, VHDX: vhdx, VDI: vdi}[format]
	if check == nil {
		return Header{}, fmt.Errorf("check an image: %q is no format that is converted", format)
	}
	h := &header{r: r, size: size}
	found, err := check(h)
	switch {
	case h.err != nil:
		return Header{}, h.err
	case err != nil:
		return Header{}, fmt.Errorf("%s: %w", format, err)
	case found.Size <= 0 || found.Size > maxVirtual:
		return Header{}, unusable("%s: it claims that its disk has %d bytes", format, uint64(found.Size))
	}
	found.Format = format
	return found, nil
}

// maxFile is more than an image refers to.
const maxFile = 1 << 57

// Whole is the file as QEMU is to see it. QEMU would take for zeros what is behind the end of a file, and
// so make a disk with holes of an image that is cut off. It sees a file without end, and reading behind
// the last sector of the true file fails. A file may end within its last cluster: where the disk ends within
// it. QEMU reads no more of it than the disk has.
func (h Header) Whole(r io.ReaderAt, size int64) (io.ReaderAt, int64) {
	if h.Cluster == 0 {
		return r, size
	}
	return &whole{r: r, size: size, end: (size+sector-1)/sector*sector + h.Behind}, maxFile
}

// whole is a file that has zeros from its size on to its end.
type whole struct {
	r         io.ReaderAt
	size, end int64
}

func (w *whole) ReadAt(p []byte, offset int64) (int, error) {
	if int64(len(p)) > w.end-offset {
		return 0, unusable("it is cut off: it refers to byte %d, and has %d", offset+int64(len(p)), w.size)
	}
	there := p[:max(0, min(int64(len(p)), w.size-offset))]
	if n, err := w.r.ReadAt(there, offset); err != nil && n < len(there) {
		return n, err
	}
	clear(p[len(there):])
	return len(p), nil
}

// header reads parts of an image. After an error of reading, all that is read is zeros, and err is
// set.
type header struct {
	r    io.ReaderAt
	size int64
	err  error
}

// part reads a part, which must be inside the file. It returns nil if it is not.
func (h *header) part(offset, length uint64) []byte {
	const most = 4 << 20
	if !h.inside(offset, length) || length > most {
		return nil
	}
	p := make([]byte, length)
	if n, err := h.r.ReadAt(p, int64(offset)); err != nil && n < len(p) && h.err == nil {
		h.err = fmt.Errorf("read the image's header: %w", err)
	}
	return p
}

// inside says whether a part is inside the file.
func (h *header) inside(offset, length uint64) bool {
	return offset <= uint64(h.size) && length <= uint64(h.size)-offset
}

func little(p []byte, at int) uint64   { return binary.LittleEndian.Uint64(p[at:]) }
func little32(p []byte, at int) uint32 { return binary.LittleEndian.Uint32(p[at:]) }
func big(p []byte, at int) uint64      { return binary.BigEndian.Uint64(p[at:]) }
func big32(p []byte, at int) uint32    { return binary.BigEndian.Uint32(p[at:]) }
