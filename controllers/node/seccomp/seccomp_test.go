package seccomp

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const shipped = "../../../config/passt/passt.json"

func TestProfileForPasstIsFound(t *testing.T) {
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

// TestOffersPasst: a node with the profile offers passt unless the kernel denies user namespaces or the mounts in
// there.
func TestOffersPasst(t *testing.T) {
	content, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file, value string
		want        bool
	}{
		"a kernel without switches":       {"proc/version", "Linux", true},
		"user namespaces":                 {"proc/sys/user/max_user_namespaces", "96364\n", true},
		"no user namespaces":              {"proc/sys/user/max_user_namespaces", "0\n", false},
		"Debian's switch is on":           {"proc/sys/kernel/unprivileged_userns_clone", "1\n", true},
		"Debian's switch is off":          {"proc/sys/kernel/unprivileged_userns_clone", "0\n", false},
		"Ubuntu's restriction":            {"proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n", false},
		"AppArmor is there, and is off":   {"sys/module/apparmor/parameters/enabled", "N\n", true},
		"AppArmor gives pods its profile": {"sys/module/apparmor/parameters/enabled", "Y\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			folder, kernel := t.TempDir(), t.TempDir()
			profile, file := filepath.Join(folder, v1.PasstProfile), filepath.Join(kernel, c.file)
			err := errors.Join(os.MkdirAll(filepath.Dir(profile), 0o755), os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(c.value), 0o644))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := OffersPasst(Folder(folder), Kernel(kernel)); got || err != nil {
				t.Errorf("without the profile: %v, %v", got, err)
			}
			if err := os.WriteFile(profile, content, 0o644); err != nil {
				t.Fatal(err)
			}
			if got, err := OffersPasst(Folder(folder), Kernel(kernel)); got != c.want || err != nil {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
	}
}
