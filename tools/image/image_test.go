package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// load reads a packed archive back and checks every digest in it.
func load(t *testing.T, path, ref string) v1.Image {
	t.Helper()
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(path, &tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(image); err != nil {
		t.Fatal(err)
	}
	return image
}

// contents gives the headers of an image's only layer in order, and the content of its regular files.
func contents(t *testing.T, image v1.Image) ([]*tar.Header, map[string]string) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("layers: %d, %v; want one", len(layers), err)
	}
	reader, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var headers []*tar.Header
	files := map[string]string{}
	for in := tar.NewReader(reader); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return headers, files
		}
		if err != nil {
			t.Fatal(err)
		}
		headers = append(headers, header)
		if header.Typeflag == tar.TypeReg {
			content, err := io.ReadAll(in)
			if err != nil {
				t.Fatal(err)
			}
			files[header.Name] = string(content)
		}
	}
}

func TestPackFolderAndFiles(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	write(t, filepath.Join(root, "etc/passwd"), "root:x:0:0::/:\n", 0o644)
	write(t, filepath.Join(root, "usr/bin/tool"), "old", 0o755)
	if err := os.Symlink("usr/bin", filepath.Join(root, "bin")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "disk"), "disk", 0o644)
	write(t, filepath.Join(dir, "tool"), "new", 0o755)
	output := filepath.Join(dir, "out.tar")
	t.Setenv("SOURCE_DATE_EPOCH", "1000")
	err := run([]string{
		"--ref", "localhost/kubeqemu/test:dev", "--output", output, "--dir", root, "--owner", "107:108",
		"--file", filepath.Join(dir, "disk") + ":/disk/a/disk.img:0440", "--file", filepath.Join(dir, "tool") + ":/usr/bin/tool",
		"--entrypoint", "/usr/bin/tool", "--entrypoint", "-v", "--user", "107", "--workdir", "/run", "--env", "A=b", "--label", "x=y=z",
	})
	if err != nil {
		t.Fatal(err)
	}
	image := load(t, output, "localhost/kubeqemu/test:dev")
	headers, files := contents(t, image)
	wantFiles := map[string]string{"etc/passwd": "root:x:0:0::/:\n", "usr/bin/tool": "new", "disk/a/disk.img": "disk"}
	if !reflect.DeepEqual(files, wantFiles) {
		t.Errorf("files %v, want %v", files, wantFiles)
	}
	wantModes := map[string]int64{
		"bin": 0o777, "disk/": 0o755, "disk/a/": 0o755, "disk/a/disk.img": 0o440, "etc/": 0o755, "etc/passwd": 0o644,
		"usr/": 0o755, "usr/bin/": 0o755, "usr/bin/tool": 0o755,
	}
	var names []string
	for _, header := range headers {
		names = append(names, header.Name)
		if mode, ok := wantModes[header.Name]; !ok || header.Mode != mode {
			t.Errorf("%s has mode %o, want %o", header.Name, header.Mode, mode)
		}
		if header.Uid != 107 || header.Gid != 108 || !header.ModTime.Equal(time.Unix(1000, 0)) {
			t.Errorf("%s belongs to %d:%d at %v", header.Name, header.Uid, header.Gid, header.ModTime)
		}
	}
	if want := "bin disk/ disk/a/ disk/a/disk.img etc/ etc/passwd usr/ usr/bin/ usr/bin/tool"; strings.Join(names, " ") != want {
		t.Errorf("entries %v, want %s", names, want)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	want := v1.Config{
		Entrypoint: []string{"/usr/bin/tool", "-v"}, User: "107", WorkingDir: "/run", Env: []string{"A=b"},
		Labels: map[string]string{"x": "y=z"},
	}
	if !reflect.DeepEqual(config.Config, want) || config.OS != "linux" || config.Architecture != "amd64" {
		t.Errorf("config %+v on %s/%s, want %+v", config.Config, config.OS, config.Architecture, want)
	}
}

// The same content must give the same digest, whatever the time stamps and owners of the sources.
func TestPackIsDeterministic(t *testing.T) {
	var digests []v1.Hash
	for i := range 2 {
		dir := t.TempDir()
		for _, file := range []string{"b", "a/x", "a.b"} {
			path := filepath.Join(dir, "root", file)
			write(t, path, file, 0o644)
			stamp := time.Unix(int64(1000*i), 0)
			if err := os.Chtimes(path, stamp, stamp); err != nil {
				t.Fatal(err)
			}
		}
		request := &Request{Ref: "localhost/a/b:dev", Root: filepath.Join(dir, "root"), Created: time.Unix(0, 0)}
		packed, err := request.pack(filepath.Join(dir, "out.tar"))
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, packed.Digest)
	}
	if digests[0] != digests[1] {
		t.Errorf("digests differ: %v", digests)
	}
}

// A sparse disk must neither be held in memory nor end up at its full size.
func TestPackSparseDisk(t *testing.T) {
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk.img")
	write(t, disk, "MBR", 0o644)
	const size = 256 << 20
	if err := os.Truncate(disk, size); err != nil {
		t.Fatal(err)
	}
	request := &Request{Ref: "localhost/a/b:dev", Files: []File{{Source: disk, Path: "/disk/disk.img", Mode: 0o440}}}
	output := filepath.Join(dir, "out.tar")
	if _, err := request.pack(output); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(output)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > size/50 {
		t.Errorf("archive has %d bytes for a disk of %d that is one hole", info.Size(), size)
	}
	_, files := contents(t, load(t, output, request.Ref))
	if got := files["disk/disk.img"]; len(got) != size || !strings.HasPrefix(got, "MBR") {
		t.Errorf("disk has %d bytes, want %d", len(got), size)
	}
}

func TestBadImageArgumentsAreRefused(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "x", 0o644)
	fifo := filepath.Join(dir, "root", "fifo")
	write(t, filepath.Join(dir, "root", "file"), "x", 0o644)
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	output := filepath.Join(dir, "out.tar")
	for name, args := range map[string][]string{
		"no ref":           {"--file", file + ":/a"},
		"reference":        {"--ref", "UPPER", "--file", file + ":/a"},
		"relative target":  {"--ref", "localhost/a/b:dev", "--file", file + ":a"},
		"bad mode":         {"--ref", "localhost/a/b:dev", "--file", file + ":/a:999"},
		"bad owner":        {"--ref", "localhost/a/b:dev", "--owner", "root", "--file", file + ":/a"},
		"missing source":   {"--ref", "localhost/a/b:dev", "--file", file + "x:/a"},
		"a fifo in folder": {"--ref", "localhost/a/b:dev", "--dir", filepath.Dir(fifo)},
		"stray argument":   {"--ref", "localhost/a/b:dev", "--file", file + ":/a", "more"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(append([]string{"--output", output}, args...)); err == nil {
				t.Fatal("packed without an error")
			}
			left, err := filepath.Glob(filepath.Join(dir, "*out.tar*"))
			layers, _ := filepath.Glob(filepath.Join(dir, ".layer-*"))
			if err != nil || len(left)+len(layers) != 0 {
				t.Errorf("left behind: %v %v (%v)", left, layers, err)
			}
		})
	}
}
