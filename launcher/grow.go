package launcher

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// growDisk makes a disk in a volume as large as the volume has become. QEMU
// tells the guest, which need not be restarted.
func (l *launcher) growDisk(ctx context.Context, m *message) {
	var request control.GrowDiskRequest
	if err := control.Decode(m.Data, &request); err != nil {
		m.answer(nil, err)
		return
	}
	disk, err := l.growable(request.Disk)
	if err != nil {
		m.answer(nil, err)
		return
	}
	l.growing = true
	client := l.qmp
	var reply control.GrowDiskReply
	l.later(ctx, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		reply.Size, err = grow(ctx, client, disk, request.Size)
		return err
	}, func(err error) {
		l.growing = false
		if err != nil {
			err = fmt.Errorf("grow disk %s: %w", request.Disk, err)
		}
		m.answer(reply, err)
	})
}

func (l *launcher) growable(name string) (qemuargs.Disk, error) {
	if l.state.StartedAt == nil || l.kept != nil || l.asked {
		return qemuargs.Disk{}, fmt.Errorf("grow disk %s: the VM is %s", name, l.state.State)
	}
	if l.growing {
		return qemuargs.Disk{}, errors.New("still making a disk larger")
	}
	disks := l.start.Machine.Disks
	i := slices.IndexFunc(disks, func(d qemuargs.Disk) bool { return d.Name == name })
	if i < 0 || disks[i].Image.Volume == "" || disks[i].ReadOnly || disks[i].Overlay != nil {
		return qemuargs.Disk{}, fmt.Errorf("the VM has no disk %q that could grow", name)
	}
	return disks[i], nil
}

// grow returns the size that the disk has in the end.
func grow(ctx context.Context, client *qmp.Client, disk qemuargs.Disk, size int64) (int64, error) {
	size, err := roomFor(disk.Image, size)
	if err != nil {
		return 0, err
	}
	devices, err := client.QueryBlock(ctx)
	if err != nil {
		return 0, err
	}
	for _, d := range devices {
		if d.Inserted == nil || d.Inserted.NodeName != disk.NodeName() {
			continue
		}
		if now := d.Inserted.Image.VirtualSize; size <= now {
			return now, nil
		}
		return size, client.BlockResize(ctx, disk.NodeName(), size)
	}
	return 0, errors.New("QEMU does not know the disk")
}

// roomFor is the size that a disk may have: the device's, or what is asked for
// and the file system has room for.
func roomFor(image qemuargs.Image, size int64) (int64, error) {
	if image.Volume == qemuargs.BlockVolume {
		info, err := diskimage.InspectBlock(image.Path, true)
		return info.Size, err
	}
	info, err := diskimage.InspectVolume(filepath.Dir(image.Path), filepath.Base(image.Path), true)
	const mib = 1 << 20
	return min(size, (info.Taken+info.Free)/mib*mib), err
}
