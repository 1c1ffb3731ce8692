package disks

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Plug makes what a disk needs that comes to a running guest, and returns the image that QEMU gets; nil if QEMU opens
// the image itself. machine is the Machine's UUID. patience is how long Plug waits for a disk that something else
// uses.
func Plug(ctx context.Context, d qemuargs.Disk, machine string, patience time.Duration, log *slog.Logger) (*os.File,
	error) {
	if err := makeImage(d, machine, false); err != nil {
		return nil, err
	}
	f, err := open(ctx, d, patience, log)
	if err != nil {
		return nil, errors.Join(err, Unplugged(d))
	}
	return f, nil
}

func open(ctx context.Context, d qemuargs.Disk, patience time.Duration, log *slog.Logger) (*os.File, error) {
	m := &qemuargs.Machine{Disks: []qemuargs.Disk{d}}
	if err := refuseIncomplete(m); err != nil {
		return nil, err
	}
	Arrived(m, log)
	if d.Image.Volume == "" {
		return nil, nil
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return openImage(waiting, &d, log)
}

// Unplugged removes what Plug made of a disk outside volumes, once QEMU has let go of the disk.
func Unplugged(d qemuargs.Disk) error {
	switch {
	case d.Overlay != nil:
		return os.Remove(d.Overlay.Path)
	case d.Image.Create > 0 && d.Image.Volume == "":
		return os.Remove(d.Image.Path)
	}
	return nil
}
