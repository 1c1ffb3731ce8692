package images

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
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
