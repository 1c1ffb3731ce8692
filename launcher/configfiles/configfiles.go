// Package configfiles reads the files of a volume that the kubelet has made of a ConfigMap, a Secret, the downward API
// or a service account.
//
// In such a volume each entry is a link to a file or folder below the link ..data, which leads to the folder with the
// present contents. To change the contents, the kubelet makes another folder and replaces ..data
// (pkg/volume/util/atomic_writer.go).
package configfiles

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/iso9660"
)

// MaxBytes is what the files of a volume may hold together: what a ConfigMap or a Secret may hold.
const MaxBytes = 1 << 20

const (
	current = "..data"
	// maxFolders is how deep folders may be.
	maxFolders = 7
	// attempts is how often Read begins anew because the kubelet has replaced the contents meanwhile. It does so once a
	// minute at most.
	attempts = 3
	// within keeps a lookup below the folder and on its file system, whatever links there are.
	within = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS
)

// What is wrong with a volume. No other attempt would end otherwise.
var (
	ErrTooLarge = errors.New("the files are larger than 1 MiB together")
	ErrTooMany  = fmt.Errorf("there are more than %d files and folders", iso9660.MaxFiles)
	ErrTooDeep  = errors.New("there are more than 7 folders in each other")
	ErrKind     = errors.New("is neither a file nor a folder")
)

// Read returns the files of the volume that is mounted at root, in the order of their paths, all of the same state of
// the volume. Read opens only regular files and folders, follows no link but ..data, and leaves neither the volume nor
// its file system. A volume without ..data is read as it is, but for what begins with two dots.
func Read(root string) ([]iso9660.File, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, fmt.Errorf("open volume: %w", err)
	}
	defer dir.Close()
	for attempt := 1; ; attempt++ {
		files, same, err := read(dir)
		if gone := errors.Is(err, fs.ErrNotExist); (same || err != nil && !gone) || attempt == attempts {
			if err == nil && !same {
				err = errors.New("the volume changes again and again")
			}
			return files, err
		}
	}
}

// read reads the present contents, and says whether they are still the present ones then.
func read(root *os.File) (files []iso9660.File, same bool, err error) {
	payload, err := open(root, current, unix.O_RDONLY|unix.O_DIRECTORY, within)
	if errors.Is(err, fs.ErrNotExist) {
		payload, err = open(root, ".", unix.O_RDONLY|unix.O_DIRECTORY, within)
	}
	if err != nil {
		return nil, false, fmt.Errorf("open the volume's contents: %w", err)
	}
	defer payload.Close()
	r := &reader{left: MaxBytes, most: iso9660.MaxFiles}
	if err := r.folder(payload, "", 0); err != nil {
		return nil, false, err
	}
	slices.SortFunc(r.files, func(a, b iso9660.File) int { return cmp.Compare(a.Path, b.Path) })
	same, err = still(root, payload)
	return r.files, same, err
}

// still reports whether a folder is the one with the present contents.
func still(root, payload *os.File) (bool, error) {
	now, err := open(root, current, unix.O_PATH|unix.O_DIRECTORY, within)
	if errors.Is(err, fs.ErrNotExist) {
		now, err = open(root, ".", unix.O_PATH|unix.O_DIRECTORY, within)
	}
	if err != nil {
		return false, err
	}
	defer now.Close()
	a, errA := payload.Stat()
	b, errB := now.Stat()
	if err := errors.Join(errA, errB); err != nil {
		return false, err
	}
	return os.SameFile(a, b), nil
}

type reader struct {
	files []iso9660.File
	left  int64 // bytes that may still be read
	most  int   // files and folders that may still be found
}

func (r *reader) folder(dir *os.File, prefix string, depth int) error {
	if depth > maxFolders {
		return fmt.Errorf("read /%s: %w", prefix, ErrTooDeep)
	}
	// One name more than there may be tells that there are too many.
	names, err := dir.Readdirnames(r.most + 2)
	if err != nil && err != io.EOF {
		return fmt.Errorf("read /%s: %w", prefix, err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return depth == 0 && strings.HasPrefix(name, "..") })
	if r.most -= len(names); r.most < 0 {
		return ErrTooMany
	}
	slices.Sort(names)
	for _, name := range names {
		if err := r.entry(dir, name, path.Join(prefix, name), depth); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) entry(dir *os.File, name, at string, depth int) error {
	// O_PATH neither touches a device nor waits for a FIFO's other end.
	found, err := open(dir, name, unix.O_PATH|unix.O_NOFOLLOW, within|unix.RESOLVE_NO_SYMLINKS)
	if errors.Is(err, unix.ELOOP) {
		err = ErrKind
	}
	if err != nil {
		return fmt.Errorf("read /%s: %w", at, err)
	}
	defer found.Close()
	info, err := found.Stat()
	flags := unix.O_RDONLY
	switch {
	case err != nil:
		return fmt.Errorf("read /%s: %w", at, err)
	case info.IsDir():
		flags |= unix.O_DIRECTORY
	case !info.Mode().IsRegular():
		return fmt.Errorf("read /%s: %w", at, ErrKind)
	}
	f, err := reopen(found, flags)
	if err != nil {
		return fmt.Errorf("read /%s: %w", at, err)
	}
	defer f.Close()
	if info.IsDir() {
		return r.folder(f, at, depth+1)
	}
	data, err := io.ReadAll(io.LimitReader(f, r.left+1))
	if err != nil {
		return fmt.Errorf("read /%s: %w", at, err)
	}
	if r.left -= int64(len(data)); r.left < 0 {
		return ErrTooLarge
	}
	r.files = append(r.files, iso9660.File{Path: at, Data: data})
	return nil
}

func open(dir *os.File, name string, flags int, resolve uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: resolve})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// reopen opens the file or folder behind another descriptor once more.
func reopen(f *os.File, flags int) (*os.File, error) {
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
