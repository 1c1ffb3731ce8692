package images

import (
	"archive/tar"
	"bytes"
	"context"
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
	return folder, (&unpacker{root: root, bytes: 1 << 20, entries: entries}).layer(t.Context(), stored, want)
}

// TestImpliedFoldersAreCountedOnce: folders that only the path of a file names are counted, each once.
func TestImpliedFoldersAreCountedOnce(t *testing.T) {
	data := layerOf(t, entry{name: "a/b/c/one", content: "1"}, entry{name: "a/b/c/two", content: "2"})
	for entries, want := range map[int]error{5: nil, 4: errTooLarge} {
		if _, err := unpackLayer(t, data, entries); !errors.Is(err, want) {
			t.Errorf("%d entries: %v, want %v", entries, err, want)
		}
	}
}

// TestLongPathsAreRefused: a path has an end.
func TestLongPathsAreRefused(t *testing.T) {
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

// TestOpaqueWhiteoutCountsWhereverItStands: an opaque whiteout hides what lower layers have in folders that its own layer
// has too, wherever in the layer it stands.
func TestOpaqueWhiteoutCountsWhereverItStands(t *testing.T) {
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

// TestFilesBehindAbsoluteLinksAreLeftOut: what lies behind an absolute link is left out, and the rest of the
// image is unpacked. Nothing outside changes.
func TestFilesBehindAbsoluteLinksAreLeftOut(t *testing.T) {
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

// typed is an archive with one entry of any type.
func typed(t testing.TB, name, content string, kind byte) []byte {
	t.Helper()
	data := layerOf(t, entry{name: name, content: content})
	data[156] = kind
	return summed(data)
}

// sparse is an archive with a file of 1024 zeros and then content, in the old format of GNU tar,
// which has no zeros. The fields are those of the format's header.
func sparse(t testing.TB, name, content string) []byte {
	t.Helper()
	data := typed(t, name, content, tar.TypeGNUSparse)
	copy(data[257:], "ustar  \x00")
	copy(data[386:], fmt.Sprintf("%011o\x00%011o\x00", 1024, len(content)))
	copy(data[483:], fmt.Sprintf("%011o\x00", 1024+len(content)))
	return summed(data)
}

// summed puts the sum of the first header into it.
func summed(data []byte) []byte {
	copy(data[148:156], "        ")
	sum := 0
	for _, b := range data[:512] {
		sum += int(b)
	}
	copy(data[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return data
}

// TestEntryTypesOfALayer: a sparse file and a contiguous one are files; an unknown entry is refused.
func TestEntryTypesOfALayer(t *testing.T) {
	hole := strings.Repeat("\x00", 1024)
	for name, c := range map[string]struct {
		data []byte
		want map[string]string // nil: refused
	}{
		"sparse":     {sparse(t, "disk", "end"), map[string]string{"disk": hole + "end"}},
		"contiguous": {typed(t, "disk", "all", tar.TypeCont), map[string]string{"disk": "all"}},
		"multi-part": {typed(t, "disk", "part", 'M'), nil},
		"unknown":    {typed(t, "disk", "x", 'Z'), nil},
	} {
		folder, err := unpackLayer(t, c.data, 9)
		if c.want == nil {
			if err == nil || !strings.Contains(err.Error(), "tar type") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if diff := cmp.Diff(c.want, tree(t, folder)); err != nil || diff != "" {
			t.Errorf("%s: %v, -want +got:\n%s", name, err, diff)
		}
	}
}

// TestEntryTypesOfAnArchive: an archive's files may be sparse, and links to others.
func TestEntryTypesOfAnArchive(t *testing.T) {
	first := sparse(t, "a", "end")
	link := layerOf(t, entry{name: "b", content: "a", kind: tar.TypeLink}, entry{name: "c", content: "c"})
	file := filepath.Join(t.TempDir(), "archive")
	write := func(data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(append(first[:1024:1024], link...)) // one header and one block
	archive, err := indexTar(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": strings.Repeat("\x00", 1024) + "end", "b": strings.Repeat("\x00", 1024) + "end", "c": "c"} {
		if got, err := read(archive, name, v1.Hash{}); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	write(typed(t, "a", "x", 'Z'))
	if _, err := indexTar(file); err == nil || !strings.Contains(err.Error(), "tar type") {
		t.Errorf("an unknown type: %v", err)
	}
}

// TestReadingAHoleEndsWithTheContext: a hole, which takes no bytes of the layer, is read until the context ends.
func TestReadingAHoleEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (endingReader{ctx, strings.NewReader("x")}).Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("read: %v", err)
	}
}
