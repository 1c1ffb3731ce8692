package diskimage

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/imagefile"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// InspectVolume looks at the disk called name in the volume mounted at root.
func InspectVolume(root, name string, readOnly bool) (qemuargs.VolumeFacts, error) {
	var statfs unix.Statfs_t
	if err := unix.Statfs(root, &statfs); err != nil {
		return qemuargs.VolumeFacts{}, fmt.Errorf("ask for the volume's free space: %w", err)
	}
	info := qemuargs.VolumeFacts{Free: int64(statfs.Bavail) * cmp.Or(statfs.Frsize, statfs.Bsize), Blocks: fileBlocks(&statfs)}
	f, err := OpenVolume(root, name, readOnly)
	if errors.Is(err, fs.ErrNotExist) {
		info.Missing = true
		info.Direct, err = probeFolder(root, name, readOnly)
		return info, err
	}
	if err != nil {
		return qemuargs.VolumeFacts{}, err
	}
	defer f.Close()
	stat, err := f.Stat()
	switch {
	case err != nil:
		return qemuargs.VolumeFacts{}, fmt.Errorf("stat /%s: %w", name, err)
	case stat.Size() == 0 && incomingOf(root, name, f) == "":
		return qemuargs.VolumeFacts{}, fmt.Errorf("%w: /%s is empty; delete it, and one is made", ErrUnusable, name)
	}
	info.Size, info.Direct = stat.Size(), directWorks(f) && (readOnly || stat.Size()%directBlock(f) == 0)
	info.Blank, info.Incoming = blank(f), incomingOf(root, name, f)
	if s, ok := stat.Sys().(*syscall.Stat_t); ok {
		info.Taken = s.Blocks * 512 // stat's unit, whatever the file system's is
	}
	return info, nil
}

// probeFolder reports whether O_DIRECT works in a folder in which a disk is to be made.
func probeFolder(root, name string, readOnly bool) (direct bool, err error) {
	if readOnly {
		return false, fmt.Errorf("%w: the volume has no /%s, and none can be made, for it is only read", ErrUnusable, name)
	}
	f, err := os.CreateTemp(root, ".direct-*")
	if err != nil {
		return false, explainCreate(root, name, err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	return directWorks(f), nil
}

// explainCreate returns why no file can be made in a volume.
func explainCreate(root, name string, err error) error {
	var stat unix.Stat_t
	if (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) && unix.Stat(root, &stat) == nil {
		return fmt.Errorf("%w: the volume has no /%s, and none can be made: its root has mode %04o and owner %d:%d, and cannot be written by user %d; make it writable for group %d",
			ErrUnusable, name, stat.Mode&0o7777, stat.Uid, stat.Gid, os.Getuid(), os.Getgid())
	}
	return fmt.Errorf("make a file in the volume: %w", err)
}

// OpenVolume opens the disk called name, which is no path, in the volume mounted at root.
// Other users of the volume may have put anything there, and may change it at any time. So
// OpenVolume follows no link, opens only a regular file, and opens the same file that it has
// checked.
func OpenVolume(root, name string, readOnly bool) (*os.File, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, fmt.Errorf("open volume: %w", err)
	}
	defer dir.Close()
	return openIn(dir, "", name, readOnly)
}

// beneath opens what is at a path below a folder, as imagefile.Beneath does.
func beneath(dir *os.File, name string, flags int) (*os.File, error) {
	f, err := imagefile.Beneath(imagefile.File(dir.Fd()), name, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(f), name), nil
}

// openIn opens a file in a folder that is open. folder is the folder's path in the volume, for errors.
func openIn(dir *os.File, folder, name string, readOnly bool) (*os.File, error) {
	shown := path.Join("/", folder, name)
	// O_PATH neither touches a device nor waits for a FIFO's other end.
	at, err := beneath(dir, filepath.Base(name), unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", shown, err)
	}
	defer at.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("stat %s: %w", shown, err)
	}
	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%w: %s is a %s, not a regular file", ErrUnusable, shown, imagefile.FileKind(stat.Mode))
	case stat.Nlink > 1:
		return nil, fmt.Errorf("%w: %s has %d names (hard links); what the guest writes would change them all", ErrUnusable, shown, stat.Nlink)
	}
	f, err := reopen(at, access(readOnly))
	if err != nil {
		return nil, explainUse(shown, stat, readOnly, err, fmt.Sprintf("make it readable and writable for group %d", os.Getgid()))
	}
	return f, nil
}

func access(readOnly bool) int {
	if readOnly {
		return unix.O_RDONLY
	}
	return unix.O_RDWR
}

// reopen opens the file behind another descriptor once more.
func reopen(f *os.File, flags int) (*os.File, error) {
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func directWorks(f *os.File) bool {
	direct, err := reopen(f, unix.O_RDONLY|unix.O_DIRECT)
	if err != nil {
		return false
	}
	direct.Close()
	return true
}

// directBlock returns the least number of bytes that can be read past the page cache, as QEMU finds it
// (block/file-posix.c, raw_probe_alignment). QEMU does not write past the page cache to an image whose size is no
// multiple of that.
func directBlock(f *os.File) int64 {
	most := int64(max(4096, os.Getpagesize())) // as QEMU, which asks no more than that
	direct, err := reopen(f, unix.O_RDONLY|unix.O_DIRECT)
	if err != nil {
		return most
	}
	defer direct.Close()
	buffer, err := unix.Mmap(-1, 0, int(most), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // O_DIRECT wants aligned memory, too
	if err != nil {
		return most
	}
	defer func() { _ = unix.Munmap(buffer) }()
	reads := func(bytes int64) bool {
		_, err := direct.ReadAt(buffer[:bytes], 0)
		return !errors.Is(err, unix.EINVAL)
	}
	if reads(1) {
		return most // nothing is told, as in a hole: QEMU takes the most then
	}
	for bytes := int64(512); bytes < most; bytes *= 2 {
		if reads(bytes) {
			return bytes
		}
	}
	return most
}

// explainUse returns why an existing file or device cannot be opened.
func explainUse(name string, stat unix.Stat_t, readOnly bool, err error, remedy string) error {
	use := "written"
	if readOnly {
		use = "read"
	}
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %s has mode %04o and owner %d:%d, and cannot be %s by user %d; %s",
			ErrUnusable, name, stat.Mode&0o7777, stat.Uid, stat.Gid, use, os.Getuid(), remedy)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: %s cannot be written: its file system is read-only", ErrUnusable, name)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: %w: %s is mounted, or another VM has it", ErrUnusable, ErrInUse, name)
	}
	return fmt.Errorf("open %s: %w", name, err)
}

// CreateVolume makes a sparse disk of size bytes, called name, in the volume mounted at root,
// unless there is one. The disk appears with its full size or not at all, and never replaces
// anything.
func CreateVolume(root, name string, size int64) error {
	_, err := createVolume(root, name, size)
	return err
}

// createVolume does what CreateVolume does, and reports whether it has made the disk.
func createVolume(root, name string, size int64) (made bool, err error) {
	f, err := os.CreateTemp(root, "."+name+"-*")
	if err != nil {
		return false, explainCreate(root, name, err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	// Others in the volume's group may read the disk, such as a backup program.
	for _, step := range []func() error{func() error { return f.Chmod(0o660) }, func() error { return f.Truncate(size) }, f.Sync} {
		if err := step(); err != nil {
			return false, fmt.Errorf("make a disk of %d bytes in the volume: %w", size, err)
		}
	}
	if err = placeNew(f.Name(), filepath.Join(root, filepath.Base(name))); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, fmt.Errorf("name the new disk: %w", err)
	}
	made = err == nil
	dir, err := os.Open(root)
	if err != nil {
		return made, fmt.Errorf("open volume: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // not every file system can
		return made, fmt.Errorf("sync volume: %w", err)
	}
	return made, nil
}

// placeNew renames a file to a name that nothing has.
func placeNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // on NFS, for example
		return os.Link(from, to)
	}
	return err
}

// blockRemedy is what an administrator can do about a device that cannot be opened.
const blockRemedy = "set containerd's device_ownership_from_security_context (CRI-O: the same name), which gives it to the pod's user, or give the group disk (6), which the pod is in, read and write access to it"

// InspectBlock looks at the block device at path.
func InspectBlock(path string, readOnly bool) (qemuargs.VolumeFacts, error) {
	f, err := openBlock(path, access(readOnly))
	if err != nil {
		return qemuargs.VolumeFacts{}, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	switch {
	case err != nil:
		return qemuargs.VolumeFacts{}, fmt.Errorf("ask for the size of the block device: %w", err)
	case size == 0:
		return qemuargs.VolumeFacts{}, fmt.Errorf("%w: the block device has no size", ErrUnusable)
	}
	return qemuargs.VolumeFacts{Block: true, Size: size, Direct: directWorks(f), Blocks: deviceBlocks(f, "/sys"), SCSI: takesSCSI(f)}, nil
}

// OpenBlock opens the block device at path. For writing it asks for exclusive use: QEMU's own
// locks are on the device file, and each container has a device file of its own. So those
// locks would not keep a second VM of the node away.
func OpenBlock(path string, readOnly bool) (*os.File, error) {
	flags := access(readOnly)
	if !readOnly {
		flags |= unix.O_EXCL
	}
	return openBlock(path, flags)
}

// OpenSharedBlock opens the block device at path for writing. Others may have it too.
func OpenSharedBlock(path string) (*os.File, error) { return openBlock(path, unix.O_RDWR) }

func openBlock(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("find the block device %s: %w", path, err)
	}
	at := os.NewFile(uintptr(fd), path)
	defer at.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, fmt.Errorf("stat the block device %s: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		return nil, fmt.Errorf("%w: %s is a %s, not a block device", ErrUnusable, path, imagefile.FileKind(stat.Mode))
	}
	f, err := reopen(at, flags)
	if err != nil {
		return nil, explainUse("the block device", stat, flags&unix.O_ACCMODE == unix.O_RDONLY, err, blockRemedy)
	}
	return f, nil
}
