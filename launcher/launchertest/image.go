package launchertest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// TPM returns a program that runs the swtpm of the launcher's image, whose root file system is root.
func TPM(t testing.TB, root string) string {
	t.Helper()
	return fromImage(t, root, "usr/bin/swtpm")
}

// VirtioFSD returns a program that runs the virtiofsd of the launcher's image, whose root file system is root.
func VirtioFSD(t testing.TB, root string) string {
	t.Helper()
	return fromImage(t, root, "usr/libexec/virtiofsd")
}

// fromImage returns a program that runs another of the launcher's image, with the libraries of that image.
func fromImage(t testing.TB, root, name string) string {
	t.Helper()
	root, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, name)); err != nil {
		t.Fatalf("find the launcher's image (run make image-launcher): %v", err)
	}
	path := filepath.Join(t.TempDir(), filepath.Base(name))
	text := fmt.Sprintf("#!/bin/sh\nroot='%s'\nlibraries=$root/usr/lib/x86_64-linux-gnu\n"+
		"exec \"$root/usr/lib64/ld-linux-x86-64.so.2\" --inhibit-cache --library-path \"$libraries:$libraries/swtpm\" \"$root/%s\" \"$@\"\n", root, name)
	testkit.Program(t, path, []byte(text))
	return path
}

// Passt returns the passt of the launcher's image, whose root file system is root, with what it needs, in a folder that
// every user may read.
func Passt(t testing.TB, root string) []string {
	t.Helper()
	folder, err := os.MkdirTemp("", "passt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	var files []string
	for _, name := range []string{"usr/lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu/libc.so.6", "usr/bin/passt"} {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatalf("find the launcher's image (run make image-launcher): %v", err)
		}
		files = append(files, filepath.Join(folder, filepath.Base(name)))
		testkit.Program(t, files[len(files)-1], content)
	}
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	return []string{files[0], "--inhibit-cache", "--library-path", folder, files[2]}
}
