package disks

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Growable finds a disk that may be made larger.
func Growable(m *qemuargs.Machine, name string) (qemuargs.Disk, error) {
	i := slices.IndexFunc(m.Disks, func(d qemuargs.Disk) bool { return d.Name == name })
	if i < 0 || m.Disks[i].Image.Volume == "" || m.Disks[i].ReadOnly || m.Disks[i].Overlay != nil {
		return qemuargs.Disk{}, fmt.Errorf("the VM has no disk %q that could grow", name)
	}
	return m.Disks[i], nil
}

// growTimeout bounds one question to QEMU. Storage may be slow to answer.
const growTimeout = 60 * time.Second

// Grow makes a disk as large as its volume allows, and returns the size in bytes that the
// disk has in the end. Grow can be canceled until QEMU is told to grow the disk: from then
// on a canceled Grow could not say which size the disk has.
func Grow(ctx context.Context, client *qmp.Client, disk qemuargs.Disk, size int64) (int64, error) {
	size, now, err := sizes(ctx, client, disk, size)
	switch {
	case ctx.Err() != nil:
		return now, fmt.Errorf("grow disk %s: %w", disk.Name, ctx.Err())
	case err != nil:
		return now, fmt.Errorf("grow disk %s: %w", disk.Name, err)
	case size <= now:
		return now, nil
	}
	telling, cancel := context.WithTimeout(context.WithoutCancel(ctx), growTimeout)
	defer cancel()
	if err := client.BlockResize(telling, disk.NodeName(), size); err != nil {
		return now, fmt.Errorf("grow disk %s: %w", disk.Name, err)
	}
	return size, nil
}

// sizes returns the size that a disk may have, and the size that the disk has now.
func sizes(ctx context.Context, client *qmp.Client, disk qemuargs.Disk, wanted int64) (size, now int64, err error) {
	if size, err = roomFor(disk.Image, wanted); err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, growTimeout)
	defer cancel()
	devices, err := client.QueryBlock(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, d := range devices {
		if d.Inserted != nil && d.Inserted.NodeName == disk.NodeName() {
			return size, d.Inserted.Image.VirtualSize, nil
		}
	}
	return 0, 0, errors.New("QEMU does not know the disk")
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
