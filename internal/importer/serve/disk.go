package serve

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// errChanged says that the disk changed while a part of it was sent.
var errChanged = errors.New("the disk changes while it is read")

// disk is the disk on a claim, opened for reading. What a guest wrote into it is not looked at.
type disk struct {
	file  *os.File
	block bool
	// bytes is the size of a device, and process tells this process's device from that of another.
	bytes   int64
	process string
}

// version is the disk as it is at one time.
type version struct {
	// tag is a strong ETag: no two contents have the same.
	tag   string
	bytes int64
}

// openDisk opens a regular file, or a block device. Whoever had the claim may have put anything else in its
// place.
func openDisk(path string, block bool) (*disk, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("open the claim's disk: %s is a symbolic link, and a regular file is wanted", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the claim's disk: %w", err)
	}
	d := &disk{file: f, block: block, process: rand.Text()}
	if err := d.check(); err != nil {
		f.Close()
		return nil, fmt.Errorf("open the claim's disk: %w", err)
	}
	return d, nil
}

// check says whether the disk is of the right kind.
func (d *disk) check() error {
	info, err := d.file.Stat()
	if err != nil {
		return err
	}
	if !d.block {
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file", d.file.Name())
		}
		return nil
	}
	if info.Mode()&(os.ModeDevice|os.ModeCharDevice) != os.ModeDevice {
		return fmt.Errorf("%s is no block device", d.file.Name())
	}
	d.bytes, err = d.file.Seek(0, io.SeekEnd)
	return err
}

// version is the disk as it is now. Nothing tells whether a device was written to, but in one process the
// controller sees to it that nobody writes.
func (d *disk) version() (version, error) {
	if d.block {
		return version{fmt.Sprintf(`"%s-%d"`, d.process, d.bytes), d.bytes}, nil
	}
	var s unix.Stat_t
	if err := unix.Fstat(int(d.file.Fd()), &s); err != nil {
		return version{}, fmt.Errorf("look at the claim's disk: %w", err)
	}
	return version{fmt.Sprintf(`"%x-%x-%x-%x.%x"`, s.Dev, s.Ino, s.Size, s.Mtim.Sec, s.Mtim.Nsec), s.Size}, nil
}

// content reads one version of the disk. Reading fails when the disk becomes another.
type content struct {
	disk *disk
	version
	at int64
	// read is told how far the disk was read.
	read func(upTo int64)
}

func (c *content) Read(p []byte) (int, error) {
	left := c.bytes - c.at
	if left <= 0 {
		return 0, io.EOF
	}
	n, err := c.disk.file.ReadAt(p[:min(int64(len(p)), left)], c.at)
	// The kernel changes a file's time before its bytes.
	now, versionErr := c.disk.version()
	switch {
	case versionErr != nil:
		return 0, versionErr
	case now != c.version, errors.Is(err, io.EOF) && n == 0:
		return 0, errChanged
	case err != nil && !errors.Is(err, io.EOF):
		return 0, fmt.Errorf("read the claim's disk: %w", err)
	}
	c.at += int64(n)
	c.read(c.at)
	return n, nil
}

// Seek moves to an offset, as io.Seeker says.
func (c *content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.at
	case io.SeekEnd:
		offset += c.bytes
	}
	if offset < 0 {
		return 0, errors.New("the offset is negative")
	}
	c.at = offset
	return offset, nil
}
