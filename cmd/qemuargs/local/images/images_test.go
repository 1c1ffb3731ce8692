package images

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ocilayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// entry is a file of a layer: the name, and the content or what a link leads to. A name that
// ends in a slash is a folder.
type entry struct {
	name, content string
	kind          byte // a type of package tar; 0 for a file or folder
}

func layerOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: 0o400, Typeflag: e.kind}
		switch {
		case e.kind == tar.TypeLink || e.kind == tar.TypeSymlink:
			header.Linkname = e.content
		case e.kind == 0 && strings.HasSuffix(e.name, "/"):
			header.Typeflag = tar.TypeDir
		case e.kind == 0:
			header.Typeflag, header.Size = tar.TypeReg, int64(len(e.content))
		}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, e.content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// imageOf is an image for linux/amd64 with these layers, the lowest first.
func imageOf(t testing.TB, layers ...[]byte) v1.Image {
	t.Helper()
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "amd64", RootFS: v1.RootFS{Type: "layers"}})
	for _, data := range layers {
		if err != nil {
			break
		}
		var l v1.Layer
		if l, err = tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }); err == nil {
			image, err = mutate.AppendLayers(image, l)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// tree is what a folder holds: files with their content, links with an arrow, folders with a
// slash.
func tree(t testing.TB, folder string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		rel, _ := filepath.Rel(folder, path)
		switch {
		case d.IsDir():
			out[rel+"/"] = ""
		case d.Type() == fs.ModeSymlink:
			to, err := os.Readlink(path)
			out[rel] = "-> " + to
			return err
		default:
			data, err := os.ReadFile(path)
			out[rel] = string(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func unpacked(t testing.TB, layers ...[]byte) (map[string]string, error) {
	t.Helper()
	c := &Cache{Folder: filepath.Join(t.TempDir(), "cache")}
	content, err := contentOf(imageOf(t, layers...))
	if err != nil {
		t.Fatal(err)
	}
	folder, _, err := c.add(t.Context(), content, "unpack")
	if err != nil {
		if left, _ := filepath.Glob(c.Folder + "/images/*"); len(left) != 1 || !strings.HasSuffix(left[0], ".lock") {
			t.Errorf("a failure leaves %q", left)
		}
		return nil, err
	}
	return tree(t, folder), nil
}

// TestLayersHideAndLeadNowhereOut: layers lie over each other, with what they hide, and lead nowhere out.
func TestLayersHideAndLeadNowhereOut(t *testing.T) {
	base := layerOf(t, entry{name: "disk/"}, entry{name: "./disk/old.img", content: "old"}, entry{name: "/disk/keep.img", content: "keep"}, entry{name: "boot/vmlinuz", content: "k"})
	for name, c := range map[string]struct {
		upper []entry
		want  map[string]string
	}{
		"nothing":      {nil, map[string]string{"disk/": "", "disk/old.img": "old", "disk/keep.img": "keep", "boot/": "", "boot/vmlinuz": "k"}},
		"a whiteout":   {[]entry{{name: "disk/.wh.old.img"}}, map[string]string{"disk/": "", "disk/keep.img": "keep", "boot/": "", "boot/vmlinuz": "k"}},
		"of a folder":  {[]entry{{name: ".wh.disk"}}, map[string]string{"boot/": "", "boot/vmlinuz": "k"}},
		"opaque":       {[]entry{{name: "disk/new.img", content: "new"}, {name: "disk/.wh..wh..opq"}}, map[string]string{"disk/": "", "disk/new.img": "new", "boot/": "", "boot/vmlinuz": "k"}},
		"opaque root":  {[]entry{{name: ".wh..wh..opq"}, {name: "disk/new.img", content: "new"}}, map[string]string{"disk/": "", "disk/new.img": "new"}},
		"own whiteout": {[]entry{{name: "disk/keep.img", content: "own"}, {name: "disk/.wh.keep.img"}, {name: "disk/.wh.old.img"}}, map[string]string{"disk/": "", "disk/keep.img": "own", "boot/": "", "boot/vmlinuz": "k"}},
		"replaced":     {[]entry{{name: "disk/old.img", content: "newer"}, {name: "boot", content: "a file"}}, map[string]string{"disk/": "", "disk/old.img": "newer", "disk/keep.img": "keep", "boot": "a file"}},
		"up and out":   {[]entry{{name: "../../x", content: "x"}, {name: ".wh.disk"}}, map[string]string{"x": "x", "boot/": "", "boot/vmlinuz": "k"}},
		"hard link":    {[]entry{{name: "same", content: "/disk/old.img", kind: tar.TypeLink}, {name: ".wh.disk"}, {name: ".wh.boot"}}, map[string]string{"same": "old"}},
		"devices":      {[]entry{{name: "disk/old.img", kind: tar.TypeFifo}, {name: "disk/keep.img", kind: tar.TypeBlock}}, map[string]string{"disk/": "", "boot/": "", "boot/vmlinuz": "k"}},
		"inner link":   {[]entry{{name: "d", content: "disk", kind: tar.TypeSymlink}, {name: "d/in", content: "i"}, {name: ".wh.boot"}}, map[string]string{"disk/": "", "disk/old.img": "old", "disk/keep.img": "keep", "disk/in": "i", "d": "-> disk"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := unpacked(t, base, layerOf(t, c.upper...))
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%v, -want +got:\n%s", err, diff)
			}
		})
	}
}

// TestHostileLayers: what leads out, has no end or is not what it says is refused.
func TestHostileLayers(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, entries := range map[string][]entry{
		"through a link upwards":   {{name: "d", content: "../..", kind: tar.TypeSymlink}, {name: "d/x", content: "x"}},
		"a hard link through one":  {{name: "d", content: outside, kind: tar.TypeSymlink}, {name: "x", content: "d/y", kind: tar.TypeLink}},
		"removes through a link":   {{name: "d", content: "../..", kind: tar.TypeSymlink}, {name: "d/.wh..wh..opq"}},
		"a whiteout of nothing":    {{name: "disk/.wh."}},
		"a whiteout of the parent": {{name: "disk/.wh..."}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := unpacked(t, layerOf(t, entries...)); err == nil {
				t.Errorf("it is unpacked: %v", got)
			}
			if left := tree(t, outside); len(left) != 0 {
				t.Errorf("outside: %v", left)
			}
		})
	}
}

// TestUnpackingIsBounded: an image is not unpacked without end.
func TestUnpackingIsBounded(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	data := layerOf(t, entry{name: "a", content: "12345678"}, entry{name: "b", content: "1"})
	sum := sha256.Sum256(data)
	stored := layer{int64(len(data)), func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}
	want := v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sum)}
	for _, c := range []struct {
		bytes   int64
		entries int
		err     error
	}{{1 << 20, 2, nil}, {8, 2, errTooLarge}, {1 << 20, 1, errTooLarge}, {7, 2, errTooLarge}} {
		u := &unpacker{root: root, bytes: c.bytes, entries: c.entries}
		if err := u.layer(t.Context(), stored, want); !errors.Is(err, c.err) {
			t.Errorf("%d bytes, %d entries: %v, want %v", c.bytes, c.entries, err, c.err)
		}
	}
	want.Hex = strings.Repeat("0", 64)
	if err := (&unpacker{root: root, bytes: 1 << 20, entries: 9}).layer(t.Context(), stored, want); err == nil || !strings.Contains(err.Error(), "configuration names") {
		t.Errorf("a layer that is not the configuration's: %v", err)
	}
}

// TestZerosTakeNoRoom: zeros take no room.
func TestZerosTakeNoRoom(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := append(append(make([]byte, 1<<20), "end"...), make([]byte, 100)...)
	if n, err := copySparse(f, bytes.NewReader(data)); n != int64(len(data)) || err != nil {
		t.Fatalf("copied %d bytes, %v", n, err)
	}
	got, err := os.ReadFile(f.Name())
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, or others: %v", len(got), len(data), err)
	}
}

// TestEachFormOfAnImageOpens: each form in which a user may have an image.
func TestEachFormOfAnImageOpens(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	one := imageOf(t, layerOf(t, entry{name: "disk/one.img", content: "one"}))
	two := imageOf(t, layerOf(t, entry{name: "disk/two.img", content: "two"}))
	tag := func(text string) name.Tag {
		tag, err := name.NewTag(text)
		if err != nil {
			t.Fatal(err)
		}
		return tag
	}
	annotated := func(text string) ocilayout.Option {
		return ocilayout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": text})
	}
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(tarball.WriteToFile(path("docker.tar"), tag("registry.example/one:v1"), one),
		tarball.MultiRefWriteToFile(path("dockers.tar"), map[name.Reference]v1.Image{tag("registry.example/one:v1"): one, tag("registry.example/two:v1"): two}),
		os.Mkdir(path("folder"), 0o755), os.Mkdir(path("folder/disk"), 0o755), os.WriteFile(path("folder/disk/one.img"), []byte("one"), 0o600),
		os.WriteFile(path("raw.img"), make([]byte, 4096), 0o600), os.WriteFile(path("a.qcow2"), []byte("QFI\xfb and more"), 0o600),
		os.Symlink("docker.tar", path("link")), os.WriteFile(path("docker.tar.gz"), []byte("\x1f\x8b and so on"), 0o600), os.WriteFile(path("other.tar"), layerOf(t, entry{name: "x", content: "x"}), 0o600))
	oci, err := ocilayout.Write(path("oci"), empty.Index)
	must(err)
	must(oci.AppendImage(one, annotated("v1")))
	must(os.WriteFile(path("oci.tar"), tarOf(t, path("oci")), 0o600))
	must(oci.AppendImage(two, annotated("v2")))
	must(os.WriteFile(path("ocis.tar"), tarOf(t, path("oci")), 0o600))
	for _, c := range []struct {
		file, reference string
		want            map[string]string // nil: an error
		disk            string
	}{
		{"docker.tar", "some/name", map[string]string{"disk/": "", "disk/one.img": "one"}, ""},
		{"link", "some/name", map[string]string{"disk/": "", "disk/one.img": "one"}, ""},
		{"dockers.tar", "registry.example/two:v1", map[string]string{"disk/": "", "disk/two.img": "two"}, ""},
		{"dockers.tar", "registry.example/three:v1", nil, ""},
		{"oci.tar", "some/name", map[string]string{"disk/": "", "disk/one.img": "one"}, ""},
		{"ocis.tar", "v2", map[string]string{"disk/": "", "disk/two.img": "two"}, ""},
		{"oci", "v2", map[string]string{"disk/": "", "disk/two.img": "two"}, ""},
		{"oci", "v3", nil, ""},
		{"folder", "some/name", map[string]string{"disk/": "", "disk/one.img": "one"}, ""},
		{"raw.img", "some/name", nil, "raw.img"},
		{"a.qcow2", "some/name", nil, "a.qcow2"},
		{"other.tar", "some/name", nil, ""},
		{"docker.tar.gz", "some/name", nil, ""},
		{"nothing", "some/name", nil, ""},
	} {
		t.Run(c.file+" "+c.reference, func(t *testing.T) {
			cache := &Cache{Folder: filepath.Join(t.TempDir(), "cache")}
			place, err := cache.Open(t.Context(), c.reference, path(c.file))
			switch {
			case c.want == nil && c.disk == "":
				if err == nil || !strings.Contains(err.Error(), c.file) {
					t.Errorf("%+v, %v, want an error that names the file", place, err)
				}
			case err != nil || place.Disk != c.disk:
				t.Errorf("%+v, %v, want the disk %q", place, err, c.disk)
			case c.disk != "":
				if _, err := os.Stat(filepath.Join(place.Folder, place.Disk)); err != nil {
					t.Error(err)
				}
			default:
				if diff := cmp.Diff(c.want, tree(t, place.Folder)); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			}
		})
	}
}

// tarOf packs a folder.
func tarOf(t *testing.T, folder string) []byte {
	t.Helper()
	var entries []entry
	for name, content := range tree(t, folder) {
		entries = append(entries, entry{name: name, content: content})
	}
	return layerOf(t, entries...)
}

// counting counts the requests for blobs.
type counting struct {
	http.Handler
	blobs, manifests atomic.Int64
}

func (c *counting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
		c.blobs.Add(1)
	}
	if strings.Contains(r.URL.Path, "/manifests/") {
		c.manifests.Add(1)
	}
	c.Handler.ServeHTTP(w, r)
}

// TestPullFollowsThePolicy: a registry is asked as the policy says, for each image once, by however many.
func TestPullFollowsThePolicy(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	counts := &counting{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	server := httptest.NewServer(counts)
	defer server.Close()
	reference := strings.TrimPrefix(server.URL, "http://") + "/disks/one:v1"
	push := func(image v1.Image) {
		t.Helper()
		parsed, err := name.ParseReference(reference)
		if err == nil {
			err = remote.Write(parsed, image)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	push(imageOf(t, layerOf(t, entry{name: "disk/one.img", content: "one"})))
	var last atomic.Pointer[Progress]
	cache := Cache{Folder: filepath.Join(t.TempDir(), "cache"), Report: func(p Progress) { last.Store(&p) }}
	pull := func(policy Policy, want string, blobs, manifests int64) {
		t.Helper()
		counts.blobs.Store(0)
		counts.manifests.Store(0)
		place, err := cache.Pull(t.Context(), reference, policy)
		got := ""
		if err == nil {
			got = tree(t, place.Folder)["disk/one.img"]
		}
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", policy, got, err, want)
		}
		if b, m := counts.blobs.Load(), counts.manifests.Load(); b != blobs || min(m, 1) != manifests {
			t.Errorf("%s: asked for %d blobs and %d manifests, want %d and %d", policy, b, m, blobs, manifests)
		}
	}
	pull(Never, "", 0, 0)
	pull(IfNotPresent, "one", 2, 1) // the configuration and a layer
	if p := last.Load(); p == nil || !p.Finished {
		t.Errorf("the last report is %+v", p)
	}
	pull(IfNotPresent, "one", 0, 0)
	pull(Never, "one", 0, 0)
	pull(Always, "one", 1, 1) // the configuration, whose sum names what is in the cache
	push(imageOf(t, layerOf(t, entry{name: "disk/one.img", content: "newer"})))
	pull(IfNotPresent, "one", 0, 0)
	pull(Always, "newer", 2, 1)

	reference = strings.Replace(reference, "one:v1", "none:v1", 1)
	pull(IfNotPresent, "", 0, 1)
}

// TestConcurrentUsersUnpackOnce: many that want an image at the same time unpack it once.
func TestConcurrentUsersUnpackOnce(t *testing.T) {
	image, err := contentOf(imageOf(t, layerOf(t, entry{name: "disk/one.img", content: strings.Repeat("x", 1<<20)})))
	if err != nil {
		t.Fatal(err)
	}
	var opened atomic.Int64
	open := image.layers[0].open
	image.layers[0].open = func() (io.ReadCloser, error) { opened.Add(1); return open() }
	folder := filepath.Join(t.TempDir(), "cache")
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if _, _, err := (&Cache{Folder: folder}).add(t.Context(), image, "unpack"); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if n := opened.Load(); n != 1 {
		t.Errorf("the layer was opened %d times", n)
	}
}

// TestWaitForALockEndsWithTheContext: the wait for another process ends with the context.
func TestWaitForALockEndsWithTheContext(t *testing.T) {
	c := &Cache{}
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := c.lock(t.Context(), path, "unpack x")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c.Report = func(Progress) { cancel() }
	if _, err := c.lock(ctx, path, "unpack x"); !errors.Is(err, context.Canceled) {
		t.Errorf("the second lock: %v", err)
	}
	unlock()
	if unlock, err := c.lock(t.Context(), path, "unpack x"); err != nil {
		t.Errorf("after the first: %v", err)
	} else {
		unlock()
	}
}

// TestOnlyThisMachineIsAskedWithoutTLS: only this machine is spoken to without TLS.
func TestOnlyThisMachineIsAskedWithoutTLS(t *testing.T) {
	asked := ""
	e := encrypted{roundTrip(func(r *http.Request) (*http.Response, error) { asked = r.URL.Host; return nil, errors.New("asked") }), true}
	for url, want := range map[string]bool{"http://localhost:5000/v2/": true, "http://127.0.0.1/v2/": true, "http://[::1]:5000/v2/": true,
		"http://10.0.0.1:5000/v2/": false, "http://registry.local/v2/": false, "http://localhost.example/v2/": false, "https://registry.example/v2/": true} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		asked = ""
		if _, err := e.RoundTrip(request); (asked != "") != want {
			t.Errorf("%s: %v", url, err)
		}
		elsewhere := encrypted{e.RoundTripper, false}
		asked = ""
		if _, err := elsewhere.RoundTrip(request); (asked != "") != strings.HasPrefix(url, "https:") {
			t.Errorf("%s, as a registry elsewhere leads to it: %v", url, err)
		}
	}
	if _, err := (&Cache{Folder: t.TempDir()}).Pull(t.Context(), "localhost/kubeqemu/x:dev", Always); !errors.Is(err, errNoRegistry) {
		t.Errorf("an image of this machine: %v", err)
	}
}

// TestRedirectFromTLSStaysWithTLS: a redirect from https to http is not followed, also not to this machine.
func TestRedirectFromTLSStaysWithTLS(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Errorf("asked for %s", r.URL) }))
	defer plain.Close()
	to := plain.URL
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/end" {
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
		}
	}))
	defer secure.Close()
	client := &http.Client{Transport: encrypted{secure.Client().Transport, true}}
	for target, want := range map[string]string{plain.URL: "refuse to follow a redirect", secure.URL + "/end": ""} {
		to = target
		response, err := client.Get(secure.URL + "/v2/")
		if err == nil {
			response.Body.Close()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("to %s: %v, want %q", target, err, want)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// FuzzLayer: no layer leads out of its folder, and none makes the unpacker panic.
func FuzzLayer(f *testing.F) {
	f.Add(layerOf(f, entry{name: "disk/x", content: "x"}, entry{name: "disk/.wh..wh..opq"}))
	f.Add(layerOf(f, entry{name: "d", content: "..", kind: tar.TypeSymlink}, entry{name: "d/x", content: "x"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		folder := t.TempDir()
		root, err := os.OpenRoot(folder)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		if err := os.Mkdir(filepath.Join(folder, "in"), 0o755); err != nil {
			t.Fatal(err)
		}
		in, err := root.OpenRoot("in")
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		u := &unpacker{root: in, bytes: 1 << 20, entries: 1 << 10}
		_ = u.layer(t.Context(), layer{0, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}, v1.Hash{})
		names, err := os.ReadDir(folder)
		if err != nil || len(names) != 1 {
			t.Errorf("outside: %v, %v", names, err)
		}
	})
}
