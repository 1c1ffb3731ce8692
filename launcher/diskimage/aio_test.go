package diskimage

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestProbeAIO: what is taken of the node's room decides whether there is plenty. This machine's own kernel has native
// I/O.
func TestProbeAIO(t *testing.T) {
	for name, test := range map[string]struct {
		taken, room string
		plenty      bool
	}{
		"free": {"0\n", "65536\n", true}, "half": {"32768\n", "65536\n", false}, "nearly half": {"32767\n", "65536\n", true},
		"unknown": {"", "", false}, "nonsense": {"x", "65536", false},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			dir := filepath.Join(proc, "sys/fs")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{"aio-nr": test.taken, "aio-max-nr": test.room} {
				if text == "" {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := ProbeAIO(proc); !got.Native || got.NativePlenty != test.plenty {
				t.Errorf("%+v, want native I/O, and plenty of room: %t", got, test.plenty)
			}
		})
	}
}

// TestProbeAIOLeavesNothing: a probe leaves no file open, and takes none of the room.
func TestProbeAIOLeavesNothing(t *testing.T) {
	before, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 { // 100 contexts that stay would be more than the room of a node
		if !ProbeAIO("/proc").Native {
			t.Fatal("no room is left")
		}
	}
	if after, err := os.ReadDir("/proc/self/fd"); err != nil || len(after) != len(before) {
		t.Errorf("%d files are open, and %d were (%v)", len(after), len(before), err)
	}
}

// TestBlockSizeOfFileAndDevice: a file has the block size of its file system, and a device its own.
func TestBlockSizeOfFileAndDevice(t *testing.T) {
	dir := t.TempDir()
	var statfs unix.Statfs_t
	if err := unix.Statfs(dir, &statfs); err != nil {
		t.Fatal(err)
	}
	want := qemuargs.BlockSizes{Logical: uint32(statfs.Bsize), Physical: uint32(statfs.Bsize)}
	if got := FolderBlocks(dir); got == nil || *got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	facts, err := InspectVolume(dir, "disk.img", false)
	if err != nil || facts.Blocks == nil || *facts.Blocks != want {
		t.Errorf("%+v (%v), want %+v", facts.Blocks, err, want)
	}
	if got := FolderBlocks(filepath.Join(dir, "none")); got != nil {
		t.Errorf("a folder that is not there has %+v", got)
	}
}
