package kvmcheck

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestVerdictIsKeptForThisBoot(t *testing.T) {
	dir := t.TempDir()
	kept := Kept{filepath.Join(dir, "kvm.json")}
	if got, err := kept.Load("this boot"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing was kept: %+v, %v", got, err)
	}
	for _, want := range []Result{{Works, "fast"}, {Broken, "it crawls"}} {
		if err := kept.Save("this boot", want); err != nil {
			t.Fatal(err)
		}
		if got, err := kept.Load("this boot"); got != want || err != nil {
			t.Errorf("kept %+v, %v, want %+v", got, err, want)
		}
	}
	if got, err := kept.Load("another boot"); !errors.Is(err, fs.ErrNotExist) || got != (Result{}) {
		t.Errorf("of another boot: %+v, %v", got, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// What is believed decides whether guests have a boundary around them.
func TestKeptVerdictOfOthersIsNotBelieved(t *testing.T) {
	good := func(path string) error { return Kept{path}.Save("key", Result{Works, "fast"}) }
	tests := map[string]struct {
		make func(path string) error
		want error // nil: any
	}{
		"another user's":      {func(path string) error { return errors.Join(good(path), os.Chown(path, 107, 107)) }, ErrNotOurs},
		"writable to others":  {func(path string) error { return errors.Join(good(path), os.Chmod(path, 0o602)) }, ErrNotOurs},
		"writable to a group": {func(path string) error { return errors.Join(good(path), os.Chmod(path, 0o660)) }, ErrNotOurs},
		"readable to others":  {func(path string) error { return errors.Join(good(path), os.Chmod(path, 0o644)) }, ErrNotOurs},
		"a second name":       {func(path string) error { return errors.Join(good(path), os.Link(path, path+"2")) }, ErrNotOurs},
		"a link":              {func(path string) error { return errors.Join(good(path+"2"), os.Symlink(path+"2", path)) }, unix.ELOOP},
		"a FIFO":              {func(path string) error { return unix.Mkfifo(path, 0o600) }, ErrNotOurs},
		"a folder":            {func(path string) error { return os.Mkdir(path, 0o600) }, ErrNotOurs},
		"empty":               {func(path string) error { return os.WriteFile(path, nil, 0o600) }, nil},
		"no verdict": {func(path string) error {
			return os.WriteFile(path, []byte(`{"key":"key","verdict":"","reason":""}`), 0o600)
		}, fs.ErrNotExist},
		"too long": {func(path string) error { return Kept{path}.Save("key", Result{Works, strings.Repeat("x", keptSize)}) }, nil},
	}
	for name, tt := range tests {
		path := filepath.Join(t.TempDir(), "kvm.json")
		if err := tt.make(path); err != nil {
			t.Fatal(err)
		}
		got, err := Kept{path}.Load("key")
		if err == nil || got != (Result{}) || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: believed %+v, error %v, want %v", name, got, err, tt.want)
		}
	}
}

func TestKeyIsOfThisBoot(t *testing.T) {
	key, err := Key()
	if err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(key, strings.TrimSpace(string(boot))) {
		t.Errorf("the key %q is not of this boot", key)
	}
	if again, err := Key(); again != key || err != nil {
		t.Errorf("the key changes: %q, then %q, %v", key, again, err)
	}
}
