// Package imagefile opens, copies and hands out files of a container's image. It is what runs in a container with a
// tenant's image (cmd/virt-image). Each container disk may have such a container. So the package does without fmt,
// encoding/json and net, which would take half a MiB of each.
package imagefile

import (
	"errors"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrUnusable is wrapped by errors that say what is wrong with the image itself.
var ErrUnusable = errors.New("disk image cannot be used")

// problem is an error with a text before those that it wraps.
type problem struct {
	text  string
	wraps []error
}

func (p problem) Error() string   { return p.text }
func (p problem) Unwrap() []error { return p.wraps }

// unusable returns an error that wraps ErrUnusable. cause may be nil.
func unusable(text string, cause error) error {
	p := problem{text: ErrUnusable.Error() + ": " + text, wraps: []error{ErrUnusable}}
	if cause != nil {
		p.text += ": " + cause.Error()
		p.wraps = append(p.wraps, cause)
	}
	return p
}

// failed returns an error that says what failed, and wraps why.
func failed(what string, why error) error { return problem{what + ": " + why.Error(), []error{why}} }

// Open opens the disk at name inside the folder root, and returns its path below root too. An empty name means the only
// file in root's folder "disk". Open follows no symbolic link, and opens nothing outside root.
func Open(root, name string) (*os.File, string, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, "", failed("open the container image", err)
	}
	defer dir.Close()
	if name == "" {
		if name, err = onlyFile(dir); err != nil {
			return nil, "", err
		}
	}
	return Regular(dir, name)
}

// Regular opens the regular file at name, whatever slashes it begins with or dots it goes through, and returns its
// plain path too.
func Regular(dir *os.File, name string) (*os.File, string, error) {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	f, err := Beneath(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, "", explain(dir, name, err)
	}
	stat, err := f.Stat()
	if err == nil && !stat.Mode().IsRegular() {
		err = unusable("/"+name+" is a "+stat.Mode().Type().String()+", not a regular file", nil)
	}
	if err != nil {
		f.Close()
		return nil, "", err
	}
	return f, name, nil
}

func onlyFile(root *os.File) (string, error) {
	disk, err := Beneath(root, "disk", unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.EXDEV) {
		return "", mountedOver("disk")
	}
	if err != nil {
		return "", unusable("the container image has no folder /disk with a disk in it", err)
	}
	defer disk.Close()
	// Three names are enough to tell that there are too many.
	names, err := disk.Readdirnames(3)
	if err != nil && err != io.EOF {
		return "", failed("read /disk", err)
	}
	switch len(names) {
	case 0:
		return "", unusable("the container image's folder /disk is empty", nil)
	case 1:
		return path.Join("disk", names[0]), nil
	}
	return "", unusable("the container image has more than one file in /disk; name one with containerDisk.path", nil)
}

// Beneath opens what is at a path below a folder. It follows no link, and leaves neither the folder nor its mount.
func Beneath(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// explain returns why a file of an image could not be opened, and what to do.
func explain(dir *os.File, name string, err error) error {
	var stat unix.Stat_t
	switch {
	case errors.Is(err, unix.ELOOP):
		return unusable("/"+name+" is or goes through a symbolic link", nil)
	case errors.Is(err, unix.EACCES) && unix.Fstatat(int(dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW) == nil:
		return unusable("/"+name+" has "+modeAndOwner(&stat)+", and cannot be read by user "+strconv.Itoa(os.Getuid())+
			"; make it readable by "+strconv.Itoa(os.Getuid())+":"+strconv.Itoa(os.Getgid()), nil)
	case errors.Is(err, unix.EXDEV):
		return mountedOver(name)
	case errors.Is(err, unix.ENOENT):
		return unusable("the container image has no file /"+name, nil)
	}
	return failed("open /"+name, err)
}

// modeAndOwner returns a file's permissions, in four octal digits, and its owner's numbers.
func modeAndOwner(stat *unix.Stat_t) string {
	mode := strconv.FormatUint(uint64(stat.Mode&0o7777), 8)
	mode = strings.Repeat("0", max(0, 4-len(mode))) + mode
	return "mode " + mode + " and owner " + strconv.Itoa(int(stat.Uid)) + ":" + strconv.Itoa(int(stat.Gid))
}

// mountedOver returns the error of a path at which a container runtime has mounted something over the image.
func mountedOver(name string) error {
	return unusable("something is mounted over /"+name+" of the container image: declare no VOLUME there", nil)
}
