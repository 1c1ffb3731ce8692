package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// file is a file of a layer that a test makes.
type file struct {
	name    string
	mode    int64
	content []byte
}

// tarOf returns an archive of files.
func tarOf(t *testing.T, files ...file) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// imageOf returns the path of an image with one layer of these files.
func imageOf(t *testing.T, files ...file) string {
	t.Helper()
	var layer bytes.Buffer
	w := gzip.NewWriter(&layer)
	if _, err := w.Write(tarOf(t, files...)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	archive := tarOf(t, file{"layer.tar.gz", 0o644, layer.Bytes()},
		file{"manifest.json", 0o644, []byte(`[{"RepoTags": ["localhost/kubeqemu/x:v1.2.3"], "Layers": ["layer.tar.gz"]}]`)})
	if err := os.WriteFile(path, archive, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// self returns the test's own program, which Go built.
func self(t *testing.T) []byte {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// written returns the document of a file, as text and decoded.
func written(t *testing.T, path string) (string, spdx) {
	t.Helper()
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	var out bytes.Buffer
	if err := run([]string{"--version", "v1.2.3", "--name", "virt-launcher-amd64", path}, &out); err != nil {
		t.Fatal(err)
	}
	var d spdx
	if err := json.Unmarshal(out.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	return out.String(), d
}

// urls returns the package URLs of a document.
func urls(d spdx) (all []string) {
	for _, p := range d.Packages {
		for _, r := range p.References {
			all = append(all, r.Locator)
		}
	}
	return all
}

const list = "qemu-system-x86 1:11.1.3+ds-1~bpo13+1 amd64\nca-certificates 20250419+deb13u1 all\n"

func TestDocumentOfAnImageHasItsPackagesAndModules(t *testing.T) {
	path := imageOf(t, file{packagesFile, 0o644, []byte(list)}, file{"usr/bin/virt-launcher", 0o755, self(t)},
		file{"usr/bin/virt-importer", 0o755, self(t)}, file{"usr/bin/script", 0o755, []byte("#!/bin/sh\n")})
	text, d := written(t, path)
	got := urls(d)
	for _, want := range []string{"pkg:deb/debian/qemu-system-x86@1%3A11.1.3%2Bds-1~bpo13%2B1?arch=amd64",
		"pkg:deb/debian/ca-certificates@20250419%2Bdeb13u1?arch=all", "pkg:golang/github.com/kubeqemu/kubeqemu/tools"} {
		if !slices.ContainsFunc(got, func(one string) bool { return strings.HasPrefix(one, want) }) {
			t.Errorf("the document has no %s, but %q", want, got)
		}
	}
	if !slices.ContainsFunc(got, func(one string) bool { return strings.HasPrefix(one, "pkg:golang/stdlib@1.") }) {
		t.Errorf("the document does not name Go, but %q", got)
	}
	if d.Creation.Created != "2023-11-14T22:13:20Z" || d.Version != "SPDX-2.3" || len(d.Packages[0].Checksums) != 1 {
		t.Errorf("the document begins %+v, %+v", d.Creation, d.Packages[0])
	}
	if len(d.Relationships) != len(d.Packages) {
		t.Errorf("%d packages have %d relationships", len(d.Packages), len(d.Relationships))
	}
	if again, _ := written(t, path); again != text {
		t.Error("the same image gave another document")
	}
}

func TestDocumentOfAProgramHasItsModules(t *testing.T) {
	path := filepath.Join(t.TempDir(), "qemuargs")
	if err := os.WriteFile(path, self(t), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, d := written(t, path); len(urls(d)) < 2 {
		t.Errorf("the document has only %q", urls(d))
	}
}

func TestWhatIsNoImageIsRefused(t *testing.T) {
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, []byte("junk"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"junk":                   junk,
		"an image without parts": imageOf(t, file{"disk/disk.img", 0o440, []byte("x")}),
		"a list of other lines":  imageOf(t, file{packagesFile, 0o644, []byte("qemu\n")}),
	} {
		if err := run([]string{"--version", "v1.2.3", "--name", "x", path}, new(bytes.Buffer)); err == nil {
			t.Errorf("%s gave a document", name)
		}
	}
}
