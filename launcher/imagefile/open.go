// Package imagefile opens, copies and hands out files of a container's image. It is what runs in a container with a
// tenant's image (cmd/virt-image). Each container disk may have such a container. So the package does without os, fmt,
// encoding/json and net, which would take two thirds of a MiB of each.
package imagefile

import (
	"errors"
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

// File is the descriptor of an open file. An *os.File would cost each container disk a sixth of a MiB: package os
// brings the poller and more.
type File int

// Close closes the file.
func (f File) Close() { _ = unix.Close(int(f)) }

// none is no file.
const none File = -1

// open opens a path. The file is closed in programs that this one executes.
func open(path string, flags int, mode uint32) (File, error) {
	fd, err := again(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, mode) })
	if err != nil {
		return none, err
	}
	return File(fd), nil
}

// again repeats a system call that a signal has interrupted: file systems of FUSE, on which images may lie, tell so.
func again(call func() (int, error)) (n int, err error) {
	for {
		if n, err = call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Open opens the disk at name inside the folder root, and returns its path below root too. An empty name means the only
// file in root's folder "disk". Open follows no symbolic link, and opens nothing outside root.
func Open(root, name string) (File, string, error) {
	dir, err := open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return none, "", failed("open the container image "+root, err)
	}
	defer dir.Close()
	if name == "" {
		if name, err = onlyFile(dir); err != nil {
			return none, "", err
		}
	}
	return Regular(dir, name)
}

// Regular opens the regular file at name, whatever slashes it begins with or dots it goes through, and returns its
// plain path too.
func Regular(dir File, name string) (File, string, error) {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	f, err := Beneath(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return none, "", explain(dir, name, err)
	}
	var stat unix.Stat_t
	if err = unix.Fstat(int(f), &stat); err != nil {
		err = failed("stat /"+name, err)
	} else if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		err = unusable("/"+name+" is a "+FileKind(stat.Mode)+", not a regular file", nil)
	}
	if err != nil {
		f.Close()
		return none, "", err
	}
	return f, name, nil
}

// FileKind returns what kind of file has a mode (st_mode), in words: folder, FIFO.
func FileKind(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return "symbolic link"
	case unix.S_IFDIR:
		return "folder"
	case unix.S_IFIFO:
		return "FIFO"
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFCHR:
		return "character device"
	case unix.S_IFBLK:
		return "block device"
	case unix.S_IFREG:
		return "regular file"
	}
	return "file of an unknown kind"
}

func onlyFile(root File) (string, error) {
	disk, err := Beneath(root, "disk", unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.EXDEV) {
		return "", mountedOver("disk")
	}
	if err != nil {
		return "", unusable("the container image has no folder /disk with a disk in it", err)
	}
	defer disk.Close()
	names, err := someNames(disk)
	if err != nil {
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

// someNames returns names of what is in a folder: all of them, or more than one.
func someNames(folder File) (names []string, err error) {
	buffer := make([]byte, 4096)
	for len(names) < 2 {
		n, err := again(func() (int, error) { return unix.ReadDirent(int(folder), buffer) })
		if err != nil || n == 0 {
			return names, err
		}
		_, _, names = unix.ParseDirent(buffer[:n], -1, names) // without "." and ".."
	}
	return names, nil
}

// Beneath opens what is at a path below a folder. It follows no link, and leaves neither the folder nor its mount.
func Beneath(dir File, name string, flags int) (File, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	fd, err := again(func() (int, error) { return unix.Openat2(int(dir), name, &how) })
	if err != nil {
		return none, err
	}
	return File(fd), nil
}

// explain returns why a file of an image could not be opened, and what to do.
func explain(dir File, name string, err error) error {
	var stat unix.Stat_t
	switch {
	case errors.Is(err, unix.ELOOP):
		return unusable("/"+name+" is or goes through a symbolic link", nil)
	case errors.Is(err, unix.EACCES) && unix.Fstatat(int(dir), name, &stat, unix.AT_SYMLINK_NOFOLLOW) == nil:
		return unusable("/"+name+" has "+modeAndOwner(&stat)+", and cannot be read by user "+strconv.Itoa(unix.Getuid())+
			"; make it readable by "+strconv.Itoa(unix.Getuid())+":"+strconv.Itoa(unix.Getgid()), nil)
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
