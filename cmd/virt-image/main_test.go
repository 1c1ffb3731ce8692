package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestArguments: a command that is not understood does nothing.
func TestArguments(t *testing.T) {
	folder := t.TempDir()
	for _, args := range [][]string{
		{"serve"}, {"serve-image"}, {"serve-image", "--socket="}, {"serve-image", "--socket=" + folder + "/s", "more"},
		{"serve-image", "--socket=" + folder + "/s", "--colour=red"}, {"copy-program"}, {"copy-program", "--to"},
		{"copy-files", "--to=" + folder, "--most=1", "etc/passwd"}, {"copy-files", "--to=" + folder, "--", "etc/passwd"},
		{"copy-files", "--to=" + folder, "--most=much", "--", "etc/passwd"},
		{"copy-files", "--to=" + folder, "--", "--most=100000"}, {"copy-files", "--most=100000", "--", "etc/passwd"},
	} {
		if err := do(args); !errors.Is(err, errUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
	if made, err := os.ReadDir(folder); err != nil || len(made) > 0 {
		t.Errorf("the folder has %v (%v)", made, err)
	}
}

// TestCopies: the program copies itself, and files of its root.
func TestCopies(t *testing.T) {
	folder := t.TempDir()
	for _, args := range [][]string{
		{"copy-program", "--to=" + folder + "/program"},
		{"copy-files", "--most=100000", "--to=" + folder, "--", "/etc/passwd", "etc/group"},
	} {
		if err := do(args); err != nil {
			t.Fatalf("%q: %v", args, err)
		}
	}
	for _, name := range []string{"program", "etc/passwd", "etc/group"} {
		if stat, err := os.Stat(filepath.Join(folder, name)); err != nil || stat.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
