package disks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// diskInterval is the time between two looks at a disk that is in use.
const diskInterval = 250 * time.Millisecond

// Prepare makes the files that QEMU opens, opens the files that QEMU inherits, and adds the latter to files by name.
// After an error the caller closes the files. patience is how long Prepare waits for a disk that something else uses;
// 0 is not at all.
func (f Folders) Prepare(ctx context.Context, request *control.StartRequest, files map[string]*os.File,
	patience time.Duration, log *slog.Logger) error {
	if arch := request.Machine.Arch; arch != qemuargs.AMD64 && arch != qemuargs.ARM64 {
		return fmt.Errorf("prepare a machine of architecture %q: there are %s and %s", arch, qemuargs.AMD64,
			qemuargs.ARM64)
	}
	if err := f.makeFiles(request); err != nil {
		return err
	}
	if !request.Incoming {
		if err := refuseIncomplete(&request.Machine); err != nil {
			return err
		}
		Arrived(&request.Machine, log)
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := openVolumes(waiting, &request.Machine, files, log); err != nil {
		return err
	}
	return f.openImages(ctx, &request.Machine, files)
}

// refuseIncomplete fails if a migration has left one of the disks half copied.
func refuseIncomplete(m *qemuargs.Machine) error {
	return inVolumes(m, func(d *qemuargs.Disk, root, name string) error {
		if err := diskimage.Whole(root, name); err != nil {
			return fmt.Errorf("open disk %s: %w", d.Name, err)
		}
		return nil
	})
}

// Whole notes that a migration has copied all of the disks in volumes.
func Whole(m *qemuargs.Machine, log *slog.Logger) {
	_ = inVolumes(m, func(d *qemuargs.Disk, root, name string) error {
		if err := diskimage.NoteWhole(root, name); err != nil {
			log.Warn("cannot note that a disk is whole", "disk", d.Name, "error", err)
		}
		return nil
	})
}

// Arrived notes that the guest uses its disks in volumes. From then on no migration may copy into these disks anew.
// Arrived logs an error and goes on, because the guest runs all the same.
func Arrived(m *qemuargs.Machine, log *slog.Logger) {
	_ = inVolumes(m, func(d *qemuargs.Disk, root, name string) error {
		if err := diskimage.Arrived(root, name); err != nil {
			log.Warn("cannot note that the guest uses a disk", "disk", d.Name, "error", err)
		}
		return nil
	})
}

// inVolumes visits the disks that the guest writes to and that are files in volumes, until an error.
func inVolumes(m *qemuargs.Machine, visit func(d *qemuargs.Disk, root, name string) error) error {
	for i := range m.Disks {
		d := &m.Disks[i]
		if d.Image.Volume != qemuargs.FileVolume || d.ReadOnly || d.Overlay != nil {
			continue
		}
		if err := visit(d, filepath.Dir(d.Image.Path), filepath.Base(d.Image.Path)); err != nil {
			return err
		}
	}
	return nil
}

// openVolumes opens the images in volumes, and the variables in the volume with the guest's state, and adds them to
// files by name. ctx bounds the wait for a disk that something else uses.
func openVolumes(ctx context.Context, m *qemuargs.Machine, files map[string]*os.File, log *slog.Logger) error {
	for _, i := range m.Inherits() {
		switch i.Kind {
		case qemuargs.InheritedVariables:
			f, err := openWhenFree(ctx, "UEFI variables", func() (*os.File, error) { return openVariables(m.Firmware) },
				func(f *os.File) error { return diskimage.Free(f, false) }, log)
			if err != nil {
				return err
			}
			files[i.String()] = f
		case qemuargs.InheritedDisk:
			d := &m.Disks[slices.IndexFunc(m.Disks, func(d qemuargs.Disk) bool { return d.Name == i.Name })]
			f, err := openImage(ctx, d, log)
			if err != nil {
				return err
			}
			files[i.String()] = f
		}
	}
	return nil
}

// openImages gets the images that containers of the pod hand out, and adds them to files by name.
func (f Folders) openImages(ctx context.Context, m *qemuargs.Machine, files map[string]*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, sidecar.Patience)
	defer cancel()
	for i := range m.Disks {
		if m.Disks[i].Image.Volume != qemuargs.HandedOut {
			continue
		}
		file, err := f.openHandedOut(ctx, &m.Disks[i])
		if err != nil {
			return err
		}
		files[qemuargs.Inherited{Kind: qemuargs.InheritedImage, Name: m.Disks[i].Name}.String()] = file
	}
	return nil
}

// openImage opens a disk's image in a volume, as QEMU would. ctx bounds the wait while something else uses the image.
func openImage(ctx context.Context, d *qemuargs.Disk, log *slog.Logger) (*os.File, error) {
	f, err := openWhenFree(ctx, d.Name, func() (*os.File, error) { return openVolume(d) },
		func(f *os.File) error { return free(f, d) }, log)
	if err == nil && d.Image.Direct {
		// QEMU 9.1 and newer take a descriptor of an fdset only with the flags that QEMU
		// would open the file with.
		if err = diskimage.SetDirect(f); err != nil {
			f.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open disk %s: %w", d.Name, err)
	}
	return f, nil
}

// openWhenFree opens an image, and waits while something else uses the image. After the
// wait it opens an image that is a file all the same: QEMU's own lock decides, and QEMU's
// error says best what is wrong.
func openWhenFree(ctx context.Context, name string, open func() (*os.File, error), free func(*os.File) error,
	log *slog.Logger) (*os.File, error) {
	tick := time.NewTicker(diskInterval)
	defer tick.Stop()
	for waits := false; ; waits = true {
		f, err := open()
		inUse := err
		if err == nil {
			inUse = free(f)
		}
		if !errors.Is(inUse, diskimage.ErrInUse) || ctx.Err() != nil {
			return f, err
		}
		if f != nil {
			f.Close()
		}
		if !waits {
			log.Info("waiting for a disk", "disk", name, "because", inUse.Error())
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// free fails if something else uses a disk's image.
func free(f *os.File, d *qemuargs.Disk) error {
	readOnly := d.ReadOnly || d.Overlay != nil
	if d.Shared {
		return diskimage.FreeToShare(f, readOnly)
	}
	return diskimage.Free(f, readOnly)
}

func openVolume(d *qemuargs.Disk) (*os.File, error) {
	readOnly := d.ReadOnly || d.Overlay != nil
	switch {
	case d.Image.Volume == qemuargs.BlockVolume && d.Shared && !readOnly:
		return diskimage.OpenSharedBlock(d.Image.Path)
	case d.Image.Volume == qemuargs.BlockVolume:
		return diskimage.OpenBlock(d.Image.Path, readOnly)
	}
	return diskimage.OpenVolume(filepath.Dir(d.Image.Path), filepath.Base(d.Image.Path), readOnly)
}

// CloseAll closes files.
func CloseAll(files map[string]*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func (f Folders) makeFiles(request *control.StartRequest) error {
	if err := makeVariables(request.Machine.Firmware); err != nil {
		return err
	}
	for _, t := range request.Machine.ACPITables {
		if err := f.makeTable(t); err != nil {
			return err
		}
	}
	for _, d := range request.Machine.Disks {
		if err := makeImage(d, request.Machine.UUID, request.Incoming); err != nil {
			return err
		}
	}
	for _, seed := range request.CloudInit {
		if err := makeSeed(f.Secrets, seed, seedPath(&request.Machine, seed.Volume)); err != nil {
			return err
		}
	}
	return nil
}

// makeImage makes what the disk has of an image that does not exist yet. incoming: a migration fills it.
func makeImage(d qemuargs.Disk, machine string, incoming bool) error {
	var err error
	switch {
	case d.Overlay != nil:
		err = diskimage.Create(d.Overlay.Path, d.Overlay.VirtualSize)
	case d.Image.Packed > 0:
		err = placeConfig(d.Image, incoming)
	case d.Image.Create > 0 && d.Image.Volume != "" && incoming:
		err = diskimage.CreateIncoming(filepath.Dir(d.Image.Path), filepath.Base(d.Image.Path), machine, d.Image.Create)
	case d.Image.Create > 0 && d.Image.Volume != "":
		err = diskimage.CreateVolume(filepath.Dir(d.Image.Path), filepath.Base(d.Image.Path), d.Image.Create)
	case d.Image.Create > 0:
		err = diskimage.Create(d.Image.Path, d.Image.Create)
	}
	if err != nil {
		return fmt.Errorf("make image of disk %s: %w", d.Name, err)
	}
	return nil
}

// seedPath returns where the machine expects the seed of a volume.
func seedPath(m *qemuargs.Machine, volume string) string {
	for _, d := range m.Disks {
		if d.Name == volume {
			return d.Image.Path
		}
	}
	return layout.CloudInit(volume)
}
