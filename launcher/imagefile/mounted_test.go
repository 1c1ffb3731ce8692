package imagefile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestVolumeOverTheDisk: a container runtime mounts a folder where an image declares a volume. That is told, and
// nothing of the folder is opened.
func TestVolumeOverTheDisk(t *testing.T) {
	root := t.TempDir()
	disk := filepath.Join(root, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, ""); err != nil {
		t.Fatalf("mount: %v", err)
	}
	defer unix.Unmount(disk, 0)
	if err := os.WriteFile(filepath.Join(disk, "disk.img"), make([]byte, 512), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "/disk/disk.img"} {
		f, _, err := Open(root, name)
		if f != none || !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "VOLUME") {
			t.Errorf("%q: %v (%v)", name, f, err)
		}
	}
}
