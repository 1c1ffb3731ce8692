package disks

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// growTimeout bounds one question to QEMU. Storage may be slow to answer.
const growTimeout = 60 * time.Second

// Room returns the size that a disk may have, in bytes: the wanted size, as far as the file system has room for it, or
// the device's size, whatever is wanted. It is never less than the disk has now.
func Room(ctx context.Context, client *qmp.Client, disk qemuargs.Disk, wanted int64) (int64, error) {
	if disk.Image.Volume == "" || disk.ReadOnly || disk.Overlay != nil {
		return 0, errors.New("such a disk cannot grow")
	}
	size, err := roomFor(disk.Image, wanted)
	if err != nil {
		return 0, fmt.Errorf("look for room: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, growTimeout)
	defer cancel()
	devices, err := client.QueryBlock(ctx)
	if err != nil {
		return 0, err
	}
	for _, d := range devices {
		if d.Inserted != nil && d.Inserted.NodeName == disk.NodeName() {
			return max(size, d.Inserted.Image.VirtualSize), nil
		}
	}
	return 0, errors.New("QEMU does not know the disk")
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
