package sidecar

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCopyRootIntoItself: a folder of the copy that is on the image's device is not copied into itself.
func TestCopyRootIntoItself(t *testing.T) {
	root := t.TempDir()
	folder := filepath.Join(root, "launcher")
	if err := errors.Join(os.Mkdir(folder, 0o755),
		os.WriteFile(filepath.Join(root, "qemu"), []byte("x"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := CopyRoot(root, folder); err != nil {
			t.Fatalf("%.200v", err)
		}
	}
	deeper, err := os.ReadDir(filepath.Join(folder, "launcher"))
	copied, failed := os.ReadFile(filepath.Join(folder, "qemu"))
	if err != nil || failed != nil || len(deeper) != 0 || string(copied) != "x" {
		t.Errorf("%v, %q (%v, %v)", deeper, copied, err, failed)
	}
}

// TestCopyRoot: the copy has the image's folders, files and links with their modes, and an empty folder for what is
// mounted there. A second copy replaces the first.
func TestCopyRoot(t *testing.T) {
	root, folder := t.TempDir(), t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755), os.Mkdir(filepath.Join(root, "proc"), 0o555),
		os.WriteFile(filepath.Join(root, "usr/bin/qemu"), []byte("program"), 0o755),
		os.WriteFile(filepath.Join(root, "read"), []byte("x"), 0o444), os.Symlink("usr/bin", filepath.Join(root, "bin")),
		unix.Mkfifo(filepath.Join(root, "fifo"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("proc", filepath.Join(root, "proc"), "proc", 0, ""); err != nil {
		t.Fatalf("mount: %v", err)
	}
	defer unix.Unmount(filepath.Join(root, "proc"), 0)
	for range 2 {
		if err := CopyRoot(root, folder); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		got = append(got, strings.TrimPrefix(path, folder)+" "+info.Mode().String())
		return err
	})
	const want = " /bin Lrwxrwxrwx /proc drwxr-xr-x /read -r--r--r-- /usr drwxr-xr-x /usr/bin drwxr-xr-x " +
		"/usr/bin/qemu -rwxr-xr-x"
	if all := strings.Join(got, " "); err != nil || !strings.HasSuffix(all, want) {
		t.Errorf("%s (%v), want %s", all, err, want)
	}
}
