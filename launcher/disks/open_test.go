package disks

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestVolumeDirect: QEMU gets a descriptor as it would open the image itself, or
// none of an fdset fits (QEMU 9.1 and newer).
func TestVolumeDirect(t *testing.T) {
	dir := t.TempDir()
	if !diskimage.DirectWorks(dir) {
		t.Skip("NO O_DIRECT: the file system of temporary files has none")
	}
	if err := os.WriteFile(filepath.Join(dir, "disk.img"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, direct := range []bool{false, true} {
		for _, readOnly := range []bool{false, true} {
			m := &qemuargs.Machine{Disks: []qemuargs.Disk{{Name: "data", ReadOnly: readOnly,
				Image: qemuargs.Image{Path: filepath.Join(dir, "disk.img"), Format: qemuargs.Raw, Volume: qemuargs.FileVolume, Direct: direct}}}}
			files, err := openVolumes(t.Context(), m, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			flags, err := unix.FcntlInt(files["disk/data"].Fd(), unix.F_GETFL, 0)
			closeAll(files)
			want := map[bool]int{false: unix.O_RDWR, true: unix.O_RDONLY}[readOnly]
			if direct {
				want |= unix.O_DIRECT
			}
			if got := flags & (unix.O_ACCMODE | unix.O_DIRECT); err != nil || got != want {
				t.Errorf("direct %t, read-only %t: flags %#x, %v; want %#x", direct, readOnly, got, err, want)
			}
		}
	}
}
