package process

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestStartQEMUFails: a QEMU that cannot be started is an error, and leaves no descriptor open.
func TestStartQEMUFails(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	for name, c := range map[string]struct {
		machine *qemuargs.Machine
		want    string
	}{
		"no program": {&qemuargs.Machine{Serial: &qemuargs.Serial{}}, "start QEMU: "},
		"no disk":    {&qemuargs.Machine{Disks: []qemuargs.Disk{{Name: "a", Image: qemuargs.Image{Path: "/a", Volume: qemuargs.FileVolume}}}}, "nobody has brought disk/a"},
	} {
		before := openFiles(t)
		q, err := StartQEMU(missing, c.machine, false, nil, io.Discard)
		if q != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", name, q, err)
		}
		if after := openFiles(t); after != before {
			t.Errorf("%s: %d files are open, and were %d before", name, after, before)
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestQEMUVersion: what is written in the image is QEMU's version; without it, or
// where it is no version, QEMU is asked.
func TestQEMUVersion(t *testing.T) {
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatalf("%v: install Debian's qemu-system-x86 (make packages)", err)
	}
	asked, err := QEMUVersion(t.Context(), qemu, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ written, want string }{
		{"11.1.3\n", "11.1.3"}, {"12.0\n", "12.0"}, {"11.1.3", asked}, {"", asked}, {"11.1.3\n12.0\n", asked}, {"QEMU emulator version 11.1.3\n", asked},
	} {
		file := filepath.Join(t.TempDir(), "qemu-version")
		if err := os.WriteFile(file, []byte(c.written), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := QEMUVersion(t.Context(), qemu, file); got != c.want || err != nil {
			t.Errorf("%q is the version %q, %v; want %q", c.written, got, err, c.want)
		}
	}
	none := filepath.Join(t.TempDir(), "none")
	if got, err := QEMUVersion(t.Context(), qemu, none); got != asked || err != nil {
		t.Errorf("without a file: %q, %v", got, err)
	}
	if got, err := QEMUVersion(t.Context(), none, none); err == nil {
		t.Errorf("without QEMU: %q", got)
	}
}
