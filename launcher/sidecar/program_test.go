package sidecar

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
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
		if (err != nil) != c.bad || c.bad && !errors.Is(err, diskimage.ErrUnusable) {
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
