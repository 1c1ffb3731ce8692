package disks

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// growTimeout bounds one question to QEMU, or to a file system. Storage may be slow to answer.
const growTimeout = 60 * time.Second

// Looks are the looks at the room that disks have. A file system that does not answer has one of them, for ever.
type Looks struct {
	mu    sync.Mutex
	under map[string]bool // by disks
}

// Room returns the size that a disk may have, in bytes: the wanted size, as far as the file system has room for it, or
// the device's size, whatever is wanted. has is the size that the disk has.
func (l *Looks) Room(ctx context.Context, client *qmp.Client, disk qemuargs.Disk, wanted int64) (room, has int64,
	err error) {
	if disk.Image.Volume == "" || disk.ReadOnly || disk.Overlay != nil {
		return 0, 0, errors.New("such a disk cannot grow")
	}
	ctx, cancel := context.WithTimeout(ctx, growTimeout)
	defer cancel()
	if room, err = l.look(ctx, disk, wanted); err != nil {
		return 0, 0, fmt.Errorf("look for room: %w", err)
	}
	devices, err := client.QueryBlock(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, d := range devices {
		if d.Inserted != nil && d.Inserted.NodeName == disk.NodeName() {
			return room, d.Inserted.Image.VirtualSize, nil
		}
	}
	return 0, 0, errors.New("QEMU does not know the disk")
}

// look asks the disk's file system, and gives up with ctx. The file system is not asked again until it has answered.
func (l *Looks) look(ctx context.Context, disk qemuargs.Disk, wanted int64) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.under[disk.Name] {
		return 0, errors.New("its file system still does not answer")
	}
	if l.under == nil {
		l.under = map[string]bool{}
	}
	l.under[disk.Name] = true
	type answer struct {
		size int64
		err  error
	}
	told := make(chan answer, 1)
	go func() {
		size, err := roomFor(disk.Image, wanted)
		l.mu.Lock()
		delete(l.under, disk.Name)
		l.mu.Unlock()
		told <- answer{size, err}
	}()
	l.mu.Unlock()
	defer l.mu.Lock()
	select {
	case a := <-told:
		return a.size, a.err
	case <-ctx.Done():
		return 0, fmt.Errorf("its file system does not answer: %w", ctx.Err())
	}
}

// roomFor returns the size that a disk may have: the block device's size, or the wanted size as far
// as the file system has room for it.
func roomFor(image qemuargs.Image, size int64) (int64, error) {
	if image.Volume == qemuargs.BlockVolume {
		info, err := diskimage.InspectBlock(image.Path, true)
		return info.Size, err
	}
	info, err := diskimage.InspectVolume(filepath.Dir(image.Path), filepath.Base(image.Path), true)
	const mib = 1 << 20
	return min(size, (info.Taken+info.Free)/mib*mib), err
}
