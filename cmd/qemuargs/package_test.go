//go:build long

package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBuildsElsewhereWithoutRun: the program is built for other systems too, where run refuses.
func TestBuildsElsewhereWithoutRun(t *testing.T) {
	for _, system := range []string{"darwin", "windows"} {
		build := exec.Command("go", "build", "-o", os.DevNull, ".")
		build.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", system, err, out)
		}
	}
}

// TestDebianPackageIsStaticAndReproducible: Debian's package holds a static program of at most 25 MB that works, its manual
// pages and completions; the same commit gives the same package.
func TestDebianPackageIsStaticAndReproducible(t *testing.T) {
	const repo = "../.."
	binary := filepath.Join(t.TempDir(), "qemuargs")
	build := exec.Command("make", "-s", "-C", repo, "qemuargs", "BIN="+filepath.Dir(binary))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("make qemuargs: %v\n%s", err, out)
	}
	if info, err := os.Stat(binary); err != nil || info.Size() > 25e6 {
		t.Errorf("the program: %v, %d bytes", err, info.Size())
	}
	program, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if program.Section(".interp") != nil {
		t.Error("the program is not static")
	}

	var packages [2][]byte
	root := t.TempDir()
	for i := range packages {
		out, err := exec.Command(filepath.Join(repo, "config/deb/qemuargs.sh"), binary, t.TempDir()).Output()
		file := strings.TrimSpace(string(out))
		if err == nil {
			packages[i], err = os.ReadFile(file)
		}
		if err == nil && i == 0 {
			err = exec.Command("dpkg-deb", "-x", file, root).Run()
		}
		if err != nil {
			t.Fatalf("build the package: %v", err)
		}
	}
	if string(packages[0]) != string(packages[1]) {
		t.Error("two builds of one commit differ")
	}
	for _, file := range []string{"share/man/man1/qemuargs.1.gz", "share/man/man1/qemuargs-render.1.gz", "share/zsh/vendor-completions/_qemuargs",
		"share/fish/vendor_completions.d/qemuargs.fish", "share/doc/qemuargs/copyright", "share/doc/qemuargs/changelog.gz"} {
		if info, err := os.Stat(filepath.Join(root, "usr", file)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
	if out, err := exec.Command("bash", "-n", filepath.Join(root, "usr/share/bash-completion/completions/qemuargs")).CombinedOutput(); err != nil {
		t.Errorf("bash's completion: %v\n%s", err, out)
	}
	if out, err := exec.Command(filepath.Join(root, "usr/bin/qemuargs"), "render", filepath.Join(repo, "config/samples/vmi-debian.yaml")).Output(); err != nil || !strings.Contains(string(out), "\n-machine pc-q35-") {
		t.Errorf("the packaged program: %v\n%s", err, out)
	}
}
