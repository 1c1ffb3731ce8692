package seccomp

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const shipped = "../../../config/passt/passt.json"

func TestHasPasst(t *testing.T) {
	content, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		put  func(path string) error
		want bool
	}{
		"nothing": {func(string) error { return nil }, false},
		"shipped": {func(path string) error { return os.WriteFile(path, content, 0o644) }, true},
		"changed": {func(path string) error { return os.WriteFile(path, append(content, '\n'), 0o644) }, false},
		"longer":  {func(path string) error { return os.WriteFile(path, append(content, make([]byte, 1<<20)...), 0o644) }, false},
		"folder":  {func(path string) error { return os.Mkdir(path, 0o755) }, false},
		"link": {func(path string) error {
			other := path + ".other"
			if err := os.WriteFile(other, content, 0o644); err != nil {
				return err
			}
			return os.Symlink(other, path)
		}, false},
		"pipe that nobody writes to": {func(path string) error { return unix.Mkfifo(path, 0o644) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			path := filepath.Join(folder, v1.PasstProfile)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := c.put(path); err != nil {
				t.Fatal(err)
			}
			if got, err := Folder(folder).HasPasst(); got != c.want || err != nil {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
	}
}
