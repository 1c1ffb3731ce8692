package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

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
