// Package disk is the disk that an import fills: a file on a claim of volume mode Filesystem, or the
// block device of a claim of volume mode Block. A page of zeros in the image becomes a hole in a file.
package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ErrFull is wrapped by the error about a claim without room.
var ErrFull = errors.New("the claim is full")

// ErrLarger is wrapped by the error about an image whose disk is larger than the disk.
var ErrLarger = errors.New("the image's disk is larger than this disk")

// fileMode lets the VM's user write, who is in the claim's group.
const fileMode = 0o660

// Disk is an open disk.
type Disk struct {
	// Path is its file or device, and Bytes how large the guest sees it.
	Path  string
	Block bool
	Bytes int64
	// preallocate: the file has no holes.
	preallocate bool
	file        *os.File
	// folder has the lock of a file; nil for a device.
	folder *os.File
}

// Open opens a disk of so many bytes. It makes the file if there is none, and changes nothing of one
// that is there. While a file is open, Open of a file in
// its folder fails, in any process of the node.
func Open(path string, block bool, bytes int64, preallocate bool) (*Disk, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("open the disk: a size of %d bytes is none", bytes)
	}
	flags := os.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	if !block {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, fileMode)
	if err != nil {
		return nil, fmt.Errorf("open the disk: %w", err)
	}
	d := &Disk{Path: path, Block: block, Bytes: bytes, preallocate: preallocate, file: f}
	err = d.check()
	if err == nil && !block {
		d.folder, err = lockFolder(path)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open the disk: %w", err)
	}
	return d, nil
}

// check says whether the disk is of the right kind and, if it is a device, size.
func (d *Disk) check() error {
	info, err := d.file.Stat()
	if err != nil {
		return err
	}
	if !d.Block {
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file", d.Path)
		}
		return d.file.Chmod(fileMode) // the umask took bits away
	}
	if info.Mode()&(os.ModeDevice|os.ModeCharDevice) != os.ModeDevice {
		return fmt.Errorf("%s is no block device", d.Path)
	}
	size, err := d.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if size < d.Bytes {
		return fmt.Errorf("the claim's device has %d bytes, and the disk needs %d", size, d.Bytes)
	}
	return nil
}

// Close closes the disk.
func (d *Disk) Close() error {
	err := d.file.Close()
	if d.folder != nil {
		err = errors.Join(err, d.folder.Close())
	}
	return err
}

// Clear makes an empty file of the disk's size. A device keeps what it has: what an import writes to it
// is zeros too.
func (d *Disk) Clear() error {
	if d.Block {
		return nil
	}
	if err := errors.Join(d.file.Truncate(0), d.file.Truncate(d.Bytes)); err != nil {
		return d.explain("make the disk", err)
	}
	if !d.preallocate {
		return nil
	}
	err := unix.Fallocate(int(d.file.Fd()), 0, 0, d.Bytes)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // Finish writes zeros instead
	}
	return d.explain("allocate the disk", err)
}

// Empty takes what was written away again.
func (d *Disk) Empty() error {
	if d.Block {
		return nil
	}
	if err := d.file.Truncate(0); err != nil {
		return fmt.Errorf("empty the disk: %w", err)
	}
	return nil
}

// Zeroed says whether the disk has zeros where nothing was written since Clear.
func (d *Disk) Zeroed() bool { return !d.Block }

// Size is how large the file or the device is.
func (d *Disk) Size() (int64, error) {
	size, err := d.file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("find the disk's size: %w", err)
	}
	return size, nil
}

// Sync waits until what was written is on the storage.
func (d *Disk) Sync() error { return d.explain("write the disk", d.file.Sync()) }

// Finish ends the filling: the file has the disk's size, and no holes if it may have none.
func (d *Disk) Finish(ctx context.Context) error {
	if !d.Block {
		if err := d.file.Truncate(d.Bytes); err != nil {
			return d.explain("grow the disk", err)
		}
		if d.preallocate {
			if err := d.fillHoles(ctx); err != nil {
				return d.explain("allocate the disk", err)
			}
		}
	}
	return d.Sync()
}

// ZeroFrom makes zeros of a device from an offset on: it may have an earlier owner's bytes, and an older
// partition table has a copy at its end. A file has zeros there.
func (d *Disk) ZeroFrom(ctx context.Context, offset int64) error {
	const step, block = 256 << 20, 4 << 10
	if end := min((offset+block-1)/block*block, d.Bytes); d.Block && offset < end {
		// The device makes zeros of whole blocks.
		if _, err := d.file.WriteAt(make([]byte, end-offset), offset); err != nil {
			return d.explain("clear the device", err)
		}
		offset = end
	}
	for ; d.Block && offset < d.Bytes; offset += step {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := d.zeroRange(ctx, offset, min(step, d.Bytes-offset)); err != nil {
			return d.explain("clear the device", err)
		}
	}
	return nil
}

// zeroRange has the device make zeros, or writes them.
func (d *Disk) zeroRange(ctx context.Context, offset, length int64) error {
	for _, mode := range []uint32{unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE} {
		if (mode != unix.FALLOC_FL_PUNCH_HOLE || !d.preallocate) && unix.Fallocate(int(d.file.Fd()), mode|unix.FALLOC_FL_KEEP_SIZE, offset, length) == nil {
			return nil
		}
	}
	zeros := make([]byte, chunk)
	for end := offset + length; offset < end; offset += chunk {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, err := d.file.WriteAt(zeros[:min(chunk, end-offset)], offset); err != nil {
			return err
		}
	}
	return nil
}

// fillHoles allocates what the file does not have yet.
func (d *Disk) fillHoles(ctx context.Context) error {
	err := unix.Fallocate(int(d.file.Fd()), 0, 0, d.Bytes)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return d.zeroHoles(ctx)
}

// zeroHoles writes zeros where the file has holes.
func (d *Disk) zeroHoles(ctx context.Context) error {
	zeros := make([]byte, chunk)
	for at := int64(0); at < d.Bytes; {
		start, end, err := d.nextHole(at)
		if err != nil || start >= d.Bytes {
			return err
		}
		for at = start; at < end; at += chunk {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if _, err := d.file.WriteAt(zeros[:min(chunk, end-at)], at); err != nil {
				return err
			}
		}
		at = end
	}
	return nil
}

// nextHole is the first hole from an offset on. It begins at the file's end if there is none.
func (d *Disk) nextHole(at int64) (start, end int64, err error) {
	if start, err = d.file.Seek(at, unix.SEEK_HOLE); err != nil {
		return 0, 0, err
	}
	end, err = d.file.Seek(start, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return start, d.Bytes, nil
	}
	return start, end, err
}

// Free is how many bytes can still be written on the claim. It is not known for a device.
func (d *Disk) Free() (int64, bool) {
	var s unix.Statfs_t
	if d.Block || unix.Fstatfs(int(d.file.Fd()), &s) != nil {
		return 0, false
	}
	return int64(s.Bavail) * s.Frsize, true
}

// taken is how many bytes the file takes on the claim.
func (d *Disk) taken() int64 {
	var s unix.Stat_t
	if unix.Fstat(int(d.file.Fd()), &s) != nil {
		return 0
	}
	return s.Blocks * 512
}

// Full says whether there is as good as no room on the claim. A program that failed to write does not
// say why in a way that can be read.
func (d *Disk) Full() bool {
	const little = 1 << 20
	free, known := d.Free()
	return known && free < little
}

// ErrNoRoom is the error about a claim that is full, with the sizes.
func (d *Disk) ErrNoRoom() error {
	free, known := d.Free()
	if !known {
		return ErrFull
	}
	return fmt.Errorf("%w: the disk of %d bytes takes %d so far, and %d are free; make the claim larger", ErrFull, d.Bytes, d.taken(), free)
}

// explain says what an error of writing means.
func (d *Disk) explain(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		return fmt.Errorf("%s: %w: %w", what, d.ErrNoRoom(), err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
