// Package diskimage finds the disk in a container disk's image and reads its
// header, so that QEMU is told the format and never probes it. A header is
// tenant input: everything that would make QEMU open another file, or that is
// not known here, is refused.
package diskimage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/imagefile"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// ErrUnusable is wrapped by errors that say what is wrong with the image itself.
var ErrUnusable = imagefile.ErrUnusable

// Find inspects the disk at name inside the folder root. An empty name means the only file in
// root's folder "disk", as in KubeVirt's container disks. The returned path is relative to
// root. Find follows no symbolic link, and opens nothing outside root.
func Find(root, name string) (qemuargs.ImageFacts, error) {
	opened, name, err := imagefile.Open(root, name)
	if err != nil {
		return qemuargs.ImageFacts{}, err
	}
	f := os.NewFile(uintptr(opened), name)
	defer f.Close()
	info, err := Facts(f)
	if err != nil {
		return qemuargs.ImageFacts{}, fmt.Errorf("/%s: %w", name, err)
	}
	info.Path = name
	return info, nil
}

// Facts returns what the header of an open image says. The facts have no path.
func Facts(f *os.File) (qemuargs.ImageFacts, error) {
	stat, err := f.Stat()
	if err != nil {
		return qemuargs.ImageFacts{}, fmt.Errorf("stat the image: %w", err)
	}
	var info qemuargs.ImageFacts
	if info.Format, info.VirtualSize, err = header(f, stat.Size()); err != nil {
		return qemuargs.ImageFacts{}, err
	}
	// The file is opened anew: the flags of f are those of each copy of its descriptor. That does not wait for whoever
	// handed out f and has a lease on it.
	direct, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDONLY|unix.O_DIRECT|unix.O_NONBLOCK, 0)
	if err == nil {
		info.Direct = true
		direct.Close()
	}
	return info, nil
}

// FindFile finds the regular file at name inside the folder root and returns
// its path below root, as it can stand on QEMU's command line. No symbolic link
// is followed. QEMU splits -initrd at commas and spaces where the kernel is a
// Multiboot one, and opens each part as a path.
func FindFile(root, name string) (string, error) {
	if strings.ContainsAny(name, ", ") {
		return "", fmt.Errorf("%w: the file name %q has a comma or a space, at which QEMU would split it", ErrUnusable, name)
	}
	dir, err := os.Open(root)
	if err != nil {
		return "", fmt.Errorf("open image volume: %w", err)
	}
	defer dir.Close()
	f, name, err := imagefile.Regular(imagefile.File(dir.Fd()), name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return name, nil
}

// maxVirtualSize bounds what a header may claim: 64 TiB.
const maxVirtualSize = int64(64) << 40

// header recognizes a qcow2 image by its magic number; everything else is raw.
func header(r io.ReaderAt, size int64) (qemuargs.ImageFormat, int64, error) {
	if size == 0 {
		return "", 0, fmt.Errorf("%w: it is empty", ErrUnusable)
	}
	// 104 bytes is the length of a version 3 header without extensions.
	h := make([]byte, 104)
	n, err := r.ReadAt(h, 0)
	if err != nil && err != io.EOF {
		return "", 0, fmt.Errorf("read header: %w", err)
	}
	if n < 4 || string(h[:4]) != "QFI\xfb" {
		if size%512 != 0 {
			return "", 0, fmt.Errorf("%w: neither qcow2 nor raw: %d bytes are not a multiple of 512; if it is raw, make it longer: truncate -s %%512 FILE", ErrUnusable, size)
		}
		return qemuargs.Raw, size, nil
	}
	virtual, err := qcow2(h[:n], size)
	return qemuargs.QCOW2, virtual, err
}

// Incompatible features of qcow2 (QEMU docs/interop/qcow2.rst) that are accepted: the
// compression type field and extended L2 entries. Dirty or corrupt images, external data files
// and unknown features are refused.
const acceptedFeatures = 1<<3 | 1<<4

func qcow2(h []byte, size int64) (int64, error) {
	refuse := func(format string, args ...any) (int64, error) {
		return 0, fmt.Errorf("%w: qcow2 image %s", ErrUnusable, fmt.Sprintf(format, args...))
	}
	if len(h) < 72 {
		return refuse("is cut off within its header")
	}
	version := binary.BigEndian.Uint32(h[4:])
	backing := binary.BigEndian.Uint64(h[8:])
	clusterBits := binary.BigEndian.Uint32(h[20:])
	virtual := binary.BigEndian.Uint64(h[24:])
	crypt := binary.BigEndian.Uint32(h[32:])
	l1Entries := binary.BigEndian.Uint32(h[36:])
	l1Offset := binary.BigEndian.Uint64(h[40:])
	refcounts := binary.BigEndian.Uint64(h[48:])
	switch {
	case version != 2 && version != 3:
		return refuse("has version %d; 2 and 3 are known", version)
	case backing != 0:
		return refuse("has a backing file, which is not allowed")
	case crypt != 0:
		return refuse("is encrypted")
	case clusterBits < 9 || clusterBits > 21:
		return refuse("has a cluster size of 2^%d bytes", clusterBits)
	case virtual == 0 || virtual > uint64(maxVirtualSize):
		return refuse("claims a size of %d bytes", virtual)
	case l1Offset == 0 || l1Offset >= uint64(size) || uint64(l1Entries)*8 > uint64(size)-l1Offset:
		return refuse("is cut off or corrupt: its L1 table is outside the file")
	case refcounts == 0 || refcounts >= uint64(size):
		return refuse("is cut off or corrupt: its refcount table is outside the file")
	}
	if version == 3 {
		if len(h) < 104 {
			return refuse("is cut off within its header")
		}
		if features := binary.BigEndian.Uint64(h[72:]); features&^acceptedFeatures != 0 {
			return refuse("has incompatible features %#x (dirty, corrupt, with an external data file, or unknown)", features)
		}
	}
	return int64(virtual), nil
}

// SetDirect sets O_DIRECT on a file that is open already.
func SetDirect(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("set O_DIRECT: %w", err)
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		if err == nil {
			_, err = unix.FcntlInt(fd, unix.F_SETFL, flags|unix.O_DIRECT)
		}
		failed = err
	})
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("set O_DIRECT: %w", err)
	}
	return nil
}

// DirectWorks reports whether files in dir can be opened with O_DIRECT.
func DirectWorks(dir string) bool {
	f, err := os.CreateTemp(dir, ".direct-*")
	if err != nil {
		return false
	}
	defer os.Remove(f.Name())
	defer f.Close()
	return directWorks(f)
}
