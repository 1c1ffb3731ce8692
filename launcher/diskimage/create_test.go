package diskimage

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestCreateLikeQEMU: what Create makes is what QEMU makes, and QEMU finds no fault with it.
func TestCreateLikeQEMU(t *testing.T) {
	describe := func(path string) (facts map[string]any) {
		t.Helper()
		out, err := exec.Command("qemu-img", "info", "--output=json", path).Output()
		if err != nil {
			t.Fatalf("qemu-img info: %v: %s", err, out)
		}
		if err := json.Unmarshal(out, &facts); err != nil {
			t.Fatal(err)
		}
		// Names, and how many blocks a file system takes for the file.
		for _, name := range []string{"filename", "children", "actual-size"} {
			delete(facts, name)
		}
		return facts
	}
	for _, size := range []int64{0, 1, 512, 513, 1 << 20, 512 << 20, 512<<20 + 1, 40 << 30, 4 << 40, 4<<40 + 1, 64 << 40} {
		t.Run(strconv.FormatInt(size, 10), func(t *testing.T) {
			ours, theirs := filepath.Join(t.TempDir(), "ours"), filepath.Join(t.TempDir(), "theirs")
			if err := os.WriteFile(ours, make([]byte, 1<<20), 0o600); err != nil { // another image
				t.Fatal(err)
			}
			if err := Create(ours, size); err != nil {
				t.Fatal(err)
			}
			qemuImg(t, "create", "-q", "-f", "qcow2", theirs, strconv.FormatInt(size, 10))
			if diff := cmp.Diff(describe(theirs), describe(ours)); diff != "" {
				t.Errorf("(-QEMU's +ours):\n%s", diff)
			}
			qemuImg(t, "check", "-q", ours)
			if size >= 1<<20 {
				last := "write -P 0x55 " + strconv.FormatInt(size&^511-512, 10) + " 512"
				if out, err := exec.Command("qemu-io", "-f", "qcow2", "-c", "read -P 0 0 1M", "-c", last, ours).CombinedOutput(); err != nil {
					t.Errorf("write its last sector: %v: %s", err, out)
				}
				qemuImg(t, "check", "-q", ours)
			}
		})
	}
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		path string
		size int64
	}{
		"no folder":          {filepath.Join(dir, "none", "x"), 1 << 20},
		"a folder":           {dir, 1 << 20},
		"less than nothing":  {filepath.Join(dir, "x"), -1},
		"more than QEMU can": {filepath.Join(dir, "x"), 1<<51 + 1},
		"overflow":           {filepath.Join(dir, "x"), 1<<63 - 1},
	} {
		if err := Create(c.path, c.size); err == nil {
			t.Errorf("%s: made", name)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "x")); !os.IsNotExist(err) {
		t.Errorf("a file is left: %v", err)
	}
	// A user who may run programs in the pod can put these at the path.
	fifo, link := filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.Symlink(filepath.Join(dir, "x"), link)); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, link, "/dev/null"} {
		if err := Create(path, 1<<20); err == nil {
			t.Errorf("%s: made", path)
		}
	}
	reader.Close()
	if err := Create(fifo, 1<<20); err == nil { // nor does it wait for one that reads
		t.Error("a FIFO without reader: made")
	}
}
