package imagefile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenFollowsNoLink: the only file is opened, and no link is followed.
func TestOpenFollowsNoLink(t *testing.T) {
	root := t.TempDir()
	disk := filepath.Join(root, "disk", "disk.img")
	if err := errors.Join(os.Mkdir(filepath.Dir(disk), 0o755), os.WriteFile(disk, []byte("content"), 0o644)); err != nil {
		t.Fatal(err)
	}
	f, _, err := Open(root, "")
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 7)
	if _, err := unix.Read(int(f), got); err != nil || string(got) != "content" {
		t.Errorf("%q (%v)", got, err)
	}
	f.Close()
	if err := errors.Join(os.Remove(disk), os.Symlink("/etc/passwd", disk)); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{root, t.TempDir()} {
		if f, _, err := Open(root, ""); !errors.Is(err, ErrUnusable) {
			t.Errorf("opened %v (%v)", f, err)
		}
	}
}
