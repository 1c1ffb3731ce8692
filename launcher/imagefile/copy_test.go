package imagefile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCopyProgram: the copy is this program, can be run by everybody, and replaces an earlier one.
func TestCopyProgram(t *testing.T) {
	to := filepath.Join(t.TempDir(), "program")
	for range 2 {
		if err := CopyProgram(to); err != nil {
			t.Fatal(err)
		}
	}
	own, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	copied, err := os.ReadFile(to)
	stat, failed := os.Stat(to)
	if err != nil || failed != nil || !bytes.Equal(own, copied) || stat.Mode().Perm() != 0o555 {
		t.Errorf("%d bytes of %d (%v, %v)", len(copied), len(own), err, failed)
	}
}

// TestCopyFiles: files are copied to where they are in the image. Links, FIFOs and what is too large are refused.
func TestCopyFiles(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"boot/vmlinuz": "kernel", "initrd": "ram", "other": "x"} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("/etc/passwd", filepath.Join(root, "link")),
		os.Symlink("boot", filepath.Join(root, "linked")),
		unix.Mkfifo(filepath.Join(root, "fifo"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		names []string
		most  int64
		want  string
		bad   bool
	}{
		"both":           {[]string{"/boot/vmlinuz", "initrd"}, 9, "kernel ram", false},
		"again":          {[]string{"/boot/../boot//vmlinuz", "/../initrd"}, 9, "kernel ram", false},
		"too large":      {[]string{"boot/vmlinuz", "initrd"}, 8, "", true},
		"a link":         {[]string{"link"}, 100, "", true},
		"through a link": {[]string{"linked/vmlinuz"}, 100, "", true},
		"a FIFO":         {[]string{"fifo"}, 100, "", true},
		"a folder":       {[]string{"boot"}, 100, "", true},
		"nothing":        {[]string{"none"}, 100, "", true},
	} {
		folder := t.TempDir()
		err := CopyFiles(root, folder, c.most, c.names...)
		if (err != nil) != c.bad || c.bad && !errors.Is(err, ErrUnusable) {
			t.Errorf("%s: %v", name, err)
		}
		if c.bad {
			continue
		}
		kernel, err1 := os.ReadFile(filepath.Join(folder, "boot/vmlinuz"))
		ram, err2 := os.ReadFile(filepath.Join(folder, "initrd"))
		if got := string(kernel) + " " + string(ram); got != c.want || err1 != nil || err2 != nil {
			t.Errorf("%s: %q (%v, %v)", name, got, err1, err2)
		}
	}
}
