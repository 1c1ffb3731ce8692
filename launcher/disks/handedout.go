package disks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// handsOut reports whether a container of the pod hands out a volume's container disk.
func (f Folders) handsOut(volume string) bool {
	_, err := os.Stat(filepath.Dir(layout.ImageSocket(f.Sockets, volume)))
	return err == nil
}

// inspectHandedOut returns facts about a container disk that a container of the pod hands out. The error is that the
// container does not hand it out yet.
func (f Folders) inspectHandedOut(ctx context.Context, volume string) (qemuargs.ImageFacts, error) {
	file, err := f.receive(ctx, volume)
	if errors.Is(err, sidecar.ErrNotHandedOut) {
		return qemuargs.ImageFacts{Error: err.Error()}, nil
	}
	if err != nil {
		return qemuargs.ImageFacts{}, err
	}
	defer file.Close()
	facts, err := diskimage.Facts(file)
	if err != nil {
		return qemuargs.ImageFacts{Error: fmt.Sprintf("%q: %v", nameInImage(file), err)}, nil
	}
	facts.HandedOut = true
	return facts, nil
}

// nameInImage returns the name of a file that a container handed out, as its image has it. The kernel knows it; a path
// that leads there from this container does not exist.
func nameInImage(file *os.File) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return "the image's disk"
	}
	return filepath.Base(path)
}

// receive returns the image of a container disk that a container of the pod hands out.
func (f Folders) receive(ctx context.Context, volume string) (*os.File, error) {
	file, err := sidecar.Receive(ctx, layout.ImageSocket(f.Sockets, volume))
	switch {
	case errors.Is(err, sidecar.ErrNotHandedOut):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("get the image from its container %s, of which the log may say more: %w",
			layout.PodName("disk", volume), err)
	}
	return file, nil
}

// openHandedOut returns the image that a container of the pod hands out for a disk, as QEMU gets it. The container may
// hand out another file than it did for the inspection: an image in another format is refused, because QEMU would take
// the guest's data for a header, or the other way round.
func (f Folders) openHandedOut(ctx context.Context, d *qemuargs.Disk) (*os.File, error) {
	file, err := f.receive(ctx, filepath.Base(d.Name))
	if err != nil {
		return nil, fmt.Errorf("open disk %s: %w", d.Name, err)
	}
	facts, err := diskimage.Facts(file)
	switch {
	case err != nil:
	case facts.Format != d.Image.Format:
		err = fmt.Errorf("%w: it was %s when the machine was made, and is %s now", diskimage.ErrUnusable, d.Image.Format,
			facts.Format)
	case d.Image.Direct:
		err = diskimage.SetDirect(file)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("open disk %s: %w", d.Name, err)
	}
	return file, nil
}
