package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1"
)

// unpackLayer unpacks a layer into a new folder, which it returns, with at most so many entries.
func unpackLayer(t testing.TB, data []byte, entries int) (folder string, err error) {
	t.Helper()
	folder = t.TempDir()
	root, err := os.OpenRoot(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	stored := layer{int64(len(data)), func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}
	want := v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sha256.Sum256(data))}
	return folder, (&unpacker{root: root, bytes: 1 << 20, entries: entries}).layer(stored, want)
}

// TestMadeFolders: folders that only the path of a file names are counted, each once.
func TestMadeFolders(t *testing.T) {
	data := layerOf(t, entry{name: "a/b/c/one", content: "1"}, entry{name: "a/b/c/two", content: "2"})
	for entries, want := range map[int]error{5: nil, 4: errTooLarge} {
		if _, err := unpackLayer(t, data, entries); !errors.Is(err, want) {
			t.Errorf("%d entries: %v, want %v", entries, err, want)
		}
	}
}

// TestLongNames: a path has an end.
func TestLongNames(t *testing.T) {
	for name, c := range map[string]struct {
		path string
		want error
	}{
		"as many names as may be": {strings.Repeat("d/", maxComponents-1) + "x", nil},
		"more names":              {strings.Repeat("d/", maxComponents) + "x", errLongName},
		"more bytes":              {strings.Repeat(strings.Repeat("d", 99)+"/", 41) + "x", errLongName},
	} {
		if _, err := unpackLayer(t, layerOf(t, entry{name: c.path, content: "x"}), maxEntries); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestOpaqueAfter: an opaque whiteout hides what lower layers have in folders that its own layer
// has too, wherever in the layer it stands.
func TestOpaqueAfter(t *testing.T) {
	base := layerOf(t, entry{name: "disk/sub/y", content: "y"}, entry{name: "disk/sub/deep/z", content: "z"}, entry{name: "disk/y", content: "y"})
	want := map[string]string{"disk/": "", "disk/sub/": "", "disk/sub/x": "x"}
	for name, upper := range map[string][]entry{
		"opaque":           {{name: "disk/sub/x", content: "x"}, {name: "disk/.wh..wh..opq"}},
		"opaque, twice":    {{name: "disk/.wh..wh..opq"}, {name: "disk/sub/x", content: "x"}, {name: "disk/.wh..wh..opq"}},
		"of the folder":    {{name: "disk/sub/x", content: "x"}, {name: ".wh.disk"}},
		"opaque, all over": {{name: "disk/sub/x", content: "x"}, {name: ".wh..wh..opq"}},
	} {
		got, err := unpacked(t, base, layerOf(t, upper...))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v, -want +got:\n%s", name, err, diff)
		}
	}
}

// TestBehindAbsoluteLinks: what lies behind an absolute link is left out, and the rest of the
// image is unpacked. Nothing outside changes.
func TestBehindAbsoluteLinks(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "theirs"), []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := []entry{{name: "run/"}, {name: "var/out", content: outside, kind: tar.TypeSymlink}, {name: "var/run", content: "/run", kind: tar.TypeSymlink},
		{name: "var/inner", content: "../var/run", kind: tar.TypeSymlink}}
	for name, e := range map[string]entry{
		"a file":              {name: "var/out/x", content: "x"},
		"a file in a folder":  {name: "var/run/app/pid", content: "1"},
		"a folder":            {name: "var/out/x/"},
		"a link":              {name: "var/out/x", content: "y", kind: tar.TypeSymlink},
		"a file in its place": {name: "var/out/theirs", content: "x"},
		"a whiteout":          {name: "var/out/.wh.theirs"},
		"an opaque whiteout":  {name: "var/out/.wh..wh..opq"},
		"through two links":   {name: "var/inner/x", content: "x"},
	} {
		for layers, data := range map[string][][]byte{
			"one layer":  {layerOf(t, append(slices.Clone(base), e, entry{name: "disk/a", content: "a"})...)},
			"two layers": {layerOf(t, base...), layerOf(t, e, entry{name: "disk/a", content: "a"})},
		} {
			got, err := unpacked(t, data...)
			want := map[string]string{"run/": "", "var/": "", "var/out": "-> " + outside, "var/run": "-> /run", "var/inner": "-> ../var/run", "disk/": "", "disk/a": "a"}
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%s, %s: %v, -want +got:\n%s", name, layers, err, diff)
			}
			if diff := cmp.Diff(map[string]string{"theirs": "theirs"}, tree(t, outside)); diff != "" {
				t.Errorf("%s, %s: outside, -want +got:\n%s", name, layers, diff)
			}
		}
	}
}
