package diskimage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCreateIncoming: a migration makes a disk where there is none, or where nothing is lost.
func TestCreateIncoming(t *testing.T) {
	const uuid, size = "5d307ca9-b3ef-428c-8861-06e72d69f223", 1 << 20
	for name, c := range map[string]struct {
		there func(root string) error
		says  string
	}{
		"nothing there": {func(string) error { return nil }, ""},
		"a blank disk":  {func(root string) error { return CreateVolume(root, "disk.img", 4*size) }, ""},
		"a disk with data": {func(root string) error {
			return os.WriteFile(filepath.Join(root, "disk.img"), []byte(strings.Repeat("x", size)), 0o660)
		}, "has a disk /disk.img already"},
		"a disk that our migration left": {func(root string) error {
			return errors.Join(CreateIncoming(root, "disk.img", uuid, size), scribble(root))
		}, ""},
		"a disk that another machine's migration left": {func(root string) error {
			return errors.Join(CreateIncoming(root, "disk.img", "other", size), scribble(root))
		}, "has a disk /disk.img already"},
		"a disk on which our guest ran": {func(root string) error {
			return errors.Join(CreateIncoming(root, "disk.img", uuid, size), scribble(root), Arrived(root, "disk.img"))
		}, "has a disk /disk.img already"},
		"another disk in place of the one that our migration left": {func(root string) error {
			other := filepath.Join(root, "other")
			return errors.Join(CreateIncoming(root, "disk.img", uuid, size), scribble(root), os.WriteFile(other, []byte(strings.Repeat("y", size)), 0o660), os.Rename(other, filepath.Join(root, "disk.img")))
		}, "has a disk /disk.img already"},
		"an older note": {func(root string) error {
			return errors.Join(CreateIncoming(root, "disk.img", "other", size), os.Remove(filepath.Join(root, "disk.img")))
		}, ""},
		"a note without a disk": {func(root string) error {
			return os.WriteFile(filepath.Join(root, ".disk.img-incoming"), []byte(uuid), 0o660)
		}, ""},
		"a folder as note": {func(root string) error { return os.Mkdir(filepath.Join(root, ".disk.img-incoming"), 0o700) }, ""},
		"a link as note": {func(root string) error {
			return os.Symlink("/etc/passwd", filepath.Join(root, ".disk.img-incoming"))
		}, ""},
		"a link as disk": {func(root string) error { return os.Symlink("/etc/passwd", filepath.Join(root, "disk.img")) }, "symbolic link"},
	} {
		root := t.TempDir()
		if err := c.there(root); err != nil {
			t.Fatal(err)
		}
		before, _ := os.ReadFile(filepath.Join(root, "disk.img"))
		facts, _ := InspectVolume(root, "disk.img", false)
		err := CreateIncoming(root, "disk.img", uuid, size)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
		if facts.Replaceable(uuid) != (c.says == "") {
			t.Errorf("%s: facts %+v", name, facts)
		}
		after, _ := os.ReadFile(filepath.Join(root, "disk.img"))
		if err != nil && string(before) != string(after) {
			t.Errorf("%s: the disk is changed", name)
		}
		if err == nil && (len(after) != size || strings.Trim(string(after), "\x00") != "" || noted(root) != uuid) {
			t.Errorf("%s: %d bytes, note %q", name, len(after), noted(root))
		}
	}
	if text, err := os.ReadFile("/etc/passwd"); err != nil || len(text) == 0 {
		t.Errorf("what a link led to: %v", err)
	}
}

// TestCreateIncomingOnRAM: a file system that does not tell holes from data is as good as others.
func TestCreateIncomingOnRAM(t *testing.T) {
	root := t.TempDir()
	if err := unix.Mount("ramfs", root, "ramfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, 0); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // the second time what the first has left is there
		if err := errors.Join(CreateIncoming(root, "disk.img", "m", 1<<20), scribble(root)); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(Arrived(root, "disk.img")); err != nil {
		t.Error(err)
	}
	if err := CreateIncoming(root, "disk.img", "m", 1<<20); !errors.Is(err, ErrUnusable) {
		t.Errorf("on a disk that a guest uses: %v", err)
	}
}

// TestHalfCopiedDiskDoesNotStart: no guest starts from a disk that a migration has left half copied.
func TestHalfCopiedDiskDoesNotStart(t *testing.T) {
	for name, c := range map[string]struct {
		steps []func(root string) error
		whole bool
	}{
		"no migration":        {[]func(string) error{func(root string) error { return CreateVolume(root, "disk.img", 1<<20) }}, true},
		"half copied":         {[]func(string) error{incoming, scribble}, false},
		"copied":              {[]func(string) error{incoming, scribble, noteWhole}, true},
		"copied, noted twice": {[]func(string) error{incoming, noteWhole, noteWhole}, true},
		"the guest ran":       {[]func(string) error{incoming, scribble, noteWhole, arrived}, true},
		"copied anew":         {[]func(string) error{incoming, noteWhole, incoming}, false},
		"another disk":        {[]func(string) error{incoming, func(root string) error { return os.Remove(filepath.Join(root, "disk.img")) }, func(root string) error { return CreateVolume(root, "disk.img", 1<<20) }}, true},
		"no disk":             {nil, true},
	} {
		root := t.TempDir()
		for _, step := range c.steps {
			if err := step(root); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if err := Whole(root, "disk.img"); (err == nil) != c.whole {
			t.Errorf("%s: %v", name, err)
		}
		if facts, err := InspectVolume(root, "disk.img", false); name != "no disk" && name != "no migration" && name != "another disk" && name != "the guest ran" && (err != nil || !facts.Replaceable("m")) {
			t.Errorf("%s: facts %+v (%v)", name, facts, err)
		}
	}
}

func incoming(root string) error  { return CreateIncoming(root, "disk.img", "m", 1<<20) }
func noteWhole(root string) error { return NoteWhole(root, "disk.img") }
func arrived(root string) error   { return Arrived(root, "disk.img") }

// TestPowerCutWhileADiskIsEmptied: a power cut while a disk is emptied leaves one that the next migration can use.
func TestPowerCutWhileADiskIsEmptied(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(CreateIncoming(root, "disk.img", "m", 1<<20), os.Truncate(filepath.Join(root, "disk.img"), 0)); err != nil {
		t.Fatal(err)
	}
	facts, err := InspectVolume(root, "disk.img", false)
	if err != nil || !facts.Replaceable("m") {
		t.Errorf("%+v (%v)", facts, err)
	}
	if err := CreateIncoming(root, "disk.img", "m", 1<<20); err != nil {
		t.Error(err)
	}
	if err := errors.Join(os.Truncate(filepath.Join(root, "disk.img"), 4096), os.WriteFile(filepath.Join(root, "disk.img"), make([]byte, 4096), 0o660), Arrived(root, "disk.img")); err != nil {
		t.Fatal(err)
	}
	if err := CreateIncoming(root, "disk.img", "", 1<<20); err == nil {
		t.Error("a machine without UUID replaces a disk with data")
	}
}

func scribble(root string) error {
	f, err := os.OpenFile(filepath.Join(root, "disk.img"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte("half"), 4096)
	return errors.Join(err, f.Close())
}

func noted(root string) string {
	f, err := os.Open(filepath.Join(root, "disk.img"))
	if err != nil {
		return ""
	}
	defer f.Close()
	return incomingOf(root, "disk.img", f)
}
