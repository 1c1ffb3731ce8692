package diskimage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
