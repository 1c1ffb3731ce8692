//go:build long

package main

import (
	"archive/tar"
	"debug/elf"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// TestImagesOfARM64: in the images for nodes of arm64, every program and library is for arm64, and all shared libraries and symbols that
// they need are there.
func TestImagesOfARM64(t *testing.T) {
	for name, least := range map[string]int{"virt-launcher": 30, "virt-components": 1, "tiny-container-disk": 0} {
		t.Run(name, func(t *testing.T) {
			image, err := tarball.ImageFromPath(filepath.Join("../../_output/images/arm64", name+".tar"), nil)
			if err != nil {
				t.Fatalf("read the image (make images-arm64): %v", err)
			}
			config, err := image.ConfigFile()
			if err != nil || config.Architecture != "arm64" {
				t.Errorf("the image is for %q: %v", config.Architecture, err)
			}
			root := t.TempDir()
			content := mutate.Extract(image)
			defer content.Close()
			if err := unpack(content, root); err != nil {
				t.Fatal(err)
			}
			objects := elfs(t, root)
			if len(objects) < least {
				t.Errorf("only %d programs and libraries", len(objects))
			}
			lib := filepath.Join(root, "usr/lib/aarch64-linux-gnu")
			n := &needs{folders: []string{lib, filepath.Join(lib, "swtpm"), filepath.Join(root, "usr/lib")}, machine: elf.EM_AARCH64, objects: map[string]*object{}}
			if err := errors.Join(n.follow(objects), n.unresolved()); err != nil {
				t.Error(err)
			}
			if kernel, err := os.ReadFile(filepath.Join(root, "boot/vmlinuz")); name == "tiny-container-disk" && (err != nil || len(kernel) < 64 || string(kernel[56:60]) != "ARM\x64") {
				t.Errorf("the kernel is none of arm64 (Documentation/arch/arm64/booting.rst): %v", err)
			}
		})
	}
}

// unpack writes the files and links of an image below root.
func unpack(content io.Reader, root string) error {
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(root, filepath.Clean("/"+h.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeSymlink:
			if !filepath.IsAbs(h.Linkname) && !strings.Contains(h.Linkname, "..") {
				err = os.Symlink(h.Linkname, path)
			}
		case tar.TypeReg:
			var f *os.File
			if f, err = os.Create(path); err == nil {
				_, err = io.Copy(f, r)
				err = errors.Join(err, f.Close())
			}
		}
		if err != nil {
			return err
		}
	}
}

// elfs are the ELF files below root. Each must be for arm64.
func elfs(t *testing.T, root string) (paths []string) {
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		f, err := elf.Open(path)
		if wrong := new(elf.FormatError); errors.As(err, &wrong) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		if f.Machine != elf.EM_AARCH64 {
			t.Errorf("%s is for %s", path, f.Machine)
		}
		paths = append(paths, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
