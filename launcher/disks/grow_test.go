package disks

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestWhichDisksCanGrow: of a Machine's disks, those that a guest writes to a volume.
func TestWhichDisksCanGrow(t *testing.T) {
	volume := qemuargs.Image{Volume: qemuargs.FileVolume}
	m := &qemuargs.Machine{Disks: []qemuargs.Disk{{Name: "root"}, {Name: "read", Image: volume, ReadOnly: true},
		{Name: "over", Image: volume, Overlay: &qemuargs.Overlay{}}, {Name: "data", Image: volume}}}
	for _, name := range []string{"root", "read", "over", "none"} {
		if _, err := Growable(m, name); err == nil {
			t.Errorf("disk %s could grow", name)
		}
	}
	if disk, err := Growable(m, "data"); err != nil || disk.Name != "data" {
		t.Errorf("%+v, %v", disk, err)
	}
}

// TestGrowIsCanceled: a growth that was canceled before QEMU was told has changed
// nothing, and says so, whatever the disk would have said.
func TestGrowIsCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	disk := qemuargs.Disk{Name: "data", Image: qemuargs.Image{Volume: qemuargs.FileVolume, Path: filepath.Join(t.TempDir(), "disk.img")}}
	if _, err := Grow(ctx, nil, disk, 1<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
