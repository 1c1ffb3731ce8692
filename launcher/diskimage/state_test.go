package diskimage

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const stateSize = 4096

// stateVolume returns an empty volume, and a template.
func stateVolume(t *testing.T) (root, template string) {
	t.Helper()
	template = filepath.Join(t.TempDir(), "template")
	write(t, template, bytes.Repeat([]byte("t"), stateSize))
	return t.TempDir(), template
}

// TestOpenState: the file is made of the template once, and what was written to it is there the next time.
func TestOpenState(t *testing.T) {
	root, template := stateVolume(t)
	var group sync.WaitGroup
	for range 8 { // two launchers may start at once
		group.Go(func() {
			f, err := OpenState(root, "nvram", "variables", template, stateSize)
			if err != nil {
				t.Error(err)
				return
			}
			f.Close()
		})
	}
	group.Wait()
	f, err := OpenState(root, "nvram", "variables", template, stateSize)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("guest"), 0)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	write(t, template, bytes.Repeat([]byte("n"), stateSize)) // another OVMF
	if f, err = OpenState(root, "nvram", "variables", template, stateSize); err != nil {
		t.Fatal(err)
	}
	f.Close()
	got, err := os.ReadFile(filepath.Join(root, "nvram/variables"))
	if err != nil || !bytes.Equal(got, append([]byte("guest"), bytes.Repeat([]byte("t"), stateSize-5)...)) {
		t.Errorf("%q… (%v)", got[:8], err)
	}
	for path, want := range map[string]os.FileMode{"nvram": 0o770 | os.ModeDir | os.ModeSetgid, "nvram/variables": 0o660} {
		if info, err := os.Stat(filepath.Join(root, path)); err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v, want %v (%v)", path, info.Mode(), want, err)
		}
	}
	if names, err := os.ReadDir(filepath.Join(root, "nvram")); err != nil || len(names) != 1 {
		t.Errorf("the folder holds %v (%v)", names, err)
	}
}

// TestHostileState: whatever a tenant puts into the volume is refused by what it is, and nothing outside the volume is
// read or written.
func TestHostileState(t *testing.T) {
	const file, folder = "nvram/variables", "nvram"
	inside := func(make func(path string) error) func(root string) error {
		return func(root string) error {
			return errors.Join(os.Mkdir(filepath.Join(root, folder), 0o777), make(filepath.Join(root, file)))
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, outside, bytes.Repeat([]byte("o"), stateSize))
	elsewhere := t.TempDir()
	write(t, filepath.Join(elsewhere, "variables"), bytes.Repeat([]byte("o"), stateSize))
	for name, tt := range map[string]struct {
		make func(root string) error
		want string
	}{
		"symbolic link":   {inside(func(p string) error { return os.Symlink(outside, p) }), "/nvram/variables is a symbolic link"},
		"link to nothing": {inside(func(p string) error { return os.Symlink("nothing", p) }), "is a symbolic link"},
		"FIFO":            {inside(func(p string) error { return unix.Mkfifo(p, 0o666) }), "/nvram/variables is a FIFO"},
		"folder":          {inside(func(p string) error { return os.Mkdir(p, 0o777) }), "/nvram/variables is a folder"},
		"device":          {inside(func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) }), "is a character device"},
		"hard link": {inside(func(p string) error {
			return errors.Join(os.WriteFile(p+"2", make([]byte, stateSize), 0o666), os.Link(p+"2", p))
		}), "has 2 names"},
		"empty":            {inside(func(p string) error { return os.WriteFile(p, nil, 0o666) }), "has 0 bytes, and must have 4096; delete it"},
		"short":            {inside(func(p string) error { return os.WriteFile(p, make([]byte, stateSize-1), 0o666) }), "has 4095 bytes"},
		"huge":             {inside(func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o666), os.Truncate(p, 1<<40)) }), "has 1099511627776 bytes"},
		"folder is a link": {func(root string) error { return os.Symlink(elsewhere, filepath.Join(root, folder)) }, "/nvram is a symbolic link, not a folder"},
		"folder leads up":  {func(root string) error { return os.Symlink("..", filepath.Join(root, folder)) }, "/nvram is a symbolic link"},
		"folder is a file": {func(root string) error { return os.WriteFile(filepath.Join(root, folder), nil, 0o666) }, "/nvram is a regular file, not a folder"},
		"folder is a FIFO": {func(root string) error { return unix.Mkfifo(filepath.Join(root, folder), 0o666) }, "/nvram is a FIFO"},
		"folder is the end": {func(root string) error {
			return os.Symlink(filepath.Join(elsewhere, "new"), filepath.Join(root, folder))
		}, "/nvram is a symbolic link"},
	} {
		t.Run(name, func(t *testing.T) {
			root, template := stateVolume(t)
			if err := tt.make(root); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(root, file)
			if strings.HasPrefix(name, "folder ") {
				path = filepath.Join(root, folder)
			}
			before, there := state(t, path), state(t, outside)+state(t, elsewhere)+state(t, filepath.Join(elsewhere, "variables"))
			f, err := OpenState(root, "nvram", "variables", template, stateSize)
			if err == nil {
				f.Close()
			}
			if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if after := state(t, path); after != before {
				t.Errorf("was %s, is %s", before, after)
			}
			if after := state(t, outside) + state(t, elsewhere) + state(t, filepath.Join(elsewhere, "variables")); after != there {
				t.Errorf("what is outside was %s, is %s", there, after)
			}
		})
	}
}

// TestOpenStateOfWrongTemplate: OVMF of another size makes no file.
func TestOpenStateOfWrongTemplate(t *testing.T) {
	root, template := stateVolume(t)
	if _, err := OpenState(root, "nvram", "variables", template, stateSize+1); err == nil || !strings.Contains(err.Error(), "and must have 4097") {
		t.Error(err)
	}
	if names, err := os.ReadDir(filepath.Join(root, "nvram")); err != nil || len(names) != 0 {
		t.Errorf("the folder holds %v (%v)", names, err)
	}
	if _, err := OpenState(filepath.Join(root, "none"), "nvram", "variables", template, stateSize); err == nil {
		t.Error("a volume that is not there")
	}
}
