package parts

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestDisksArrive: the disk of a guest that comes is half copied until it is whole. The note that a migration copies
// into it goes when the guest has arrived.
func TestDisksArrive(t *testing.T) {
	root := t.TempDir()
	disk := qemuargs.Disk{Name: "root", Image: qemuargs.Image{Path: filepath.Join(root, "disk.img"),
		Format: qemuargs.Raw, Volume: qemuargs.FileVolume, Create: 1 << 20}}
	request := &control.StartRequest{Incoming: true,
		Machine: qemuargs.Machine{Arch: qemuargs.AMD64, UUID: "a", Disks: []qemuargs.Disk{disk}}}
	d := Disks{Log: quiet}
	if files := begin(t, d, request); files["disk/root"] == nil || len(files) != 1 {
		t.Errorf("the files are %v", files)
	}
	if err := diskimage.Whole(root, "disk.img"); err == nil {
		t.Error("the disk is whole before it was copied")
	}
	disks.Whole(&request.Machine, quiet)
	if err := diskimage.Whole(root, "disk.img"); err != nil {
		t.Error(err)
	}
	d.Arrive(t.Context(), request)
	testkit.Eventually(t, "the note of the migration to be gone", func() error {
		if in, err := os.ReadDir(root); err != nil || len(in) != 1 {
			return fmt.Errorf("the volume has %v (%w)", in, err)
		}
		return nil
	})
}
