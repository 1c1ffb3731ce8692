package configfiles

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/cputime"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/iso9660"
)

// volume returns a volume as the kubelet writes it: the contents in a folder of their own, the link ..data to it, and
// links to what is below ..data.
func volume(t *testing.T, contents map[string]string) string {
	t.Helper()
	root := t.TempDir()
	swap(t, root, "..2026_11_26_20_00_00.1", contents)
	return root
}

// swap replaces the contents of a volume.
func swap(t *testing.T, root, folder string, contents map[string]string) {
	t.Helper()
	must(t, os.Mkdir(filepath.Join(root, folder), 0o755))
	for name, text := range contents {
		file := filepath.Join(root, folder, name)
		must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must(t, os.WriteFile(file, []byte(text), 0o640))
		first, _, _ := strings.Cut(name, "/")
		if err := os.Symlink(current+"/"+first, filepath.Join(root, first)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	must(t, os.Symlink(folder, filepath.Join(root, "..data_tmp")))
	must(t, os.Rename(filepath.Join(root, "..data_tmp"), filepath.Join(root, current)))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func text(files []iso9660.File) string {
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "%s=%s ", f.Path, f.Data)
	}
	return b.String()
}

// TestFilesComeInOrderOfTheirPaths: files come in the order of their paths, without what is the kubelet's own.
func TestFilesComeInOrderOfTheirPaths(t *testing.T) {
	for name, c := range map[string]struct{ root, want string }{
		"entries":        {volume(t, map[string]string{"b": "2", "a.conf": "1", ".hidden": "", "UPPER": "3"}), ".hidden= UPPER=3 a.conf=1 b=2 "},
		"folders":        {volume(t, map[string]string{"pod/labels": "l", "pod/more/annotations": "a", "name": "n"}), "name=n pod/labels=l pod/more/annotations=a "},
		"no entries":     {volume(t, nil), ""},
		"never written":  {t.TempDir(), ""},
		"without ..data": {plain(t), "a=1 "},
	} {
		files, err := Read(c.root)
		if got := text(files); err != nil || got != c.want {
			t.Errorf("%s: %q (%v), want %q", name, got, err, c.want)
		}
	}
}

func plain(t *testing.T) string {
	root := t.TempDir()
	must(t, os.WriteFile(filepath.Join(root, "a"), []byte("1"), 0o600))
	must(t, os.WriteFile(filepath.Join(root, "..b"), []byte("2"), 0o600))
	return root
}

// TestReadsNoOtherFile: whatever is in the volume, nothing outside of it is opened, and nothing but regular files.
func TestReadsNoOtherFile(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, []byte("outside"), 0o600))
	in := func(make func(folder string)) string {
		root := volume(t, map[string]string{"good": "good"})
		folder, err := os.Readlink(filepath.Join(root, current))
		must(t, err)
		make(filepath.Join(root, folder))
		return root
	}
	data := func(to string) string {
		root := volume(t, map[string]string{"good": "good"})
		must(t, os.Remove(filepath.Join(root, current)))
		must(t, os.Symlink(to, filepath.Join(root, current)))
		return root
	}
	for name, c := range map[string]struct {
		root string
		want error
	}{
		"a link to a file outside":  {in(func(dir string) { must(t, os.Symlink(outside, filepath.Join(dir, "x"))) }), ErrKind},
		"a link by ..":              {in(func(dir string) { must(t, os.Symlink("../../../etc/passwd", filepath.Join(dir, "x"))) }), ErrKind},
		"a link inside":             {in(func(dir string) { must(t, os.Symlink("good", filepath.Join(dir, "x"))) }), ErrKind},
		"a link to a folder":        {in(func(dir string) { must(t, os.Symlink("/etc", filepath.Join(dir, "x"))) }), ErrKind},
		"a link to itself":          {in(func(dir string) { must(t, os.Symlink("x", filepath.Join(dir, "x"))) }), ErrKind},
		"a link to a descriptor":    {in(func(dir string) { must(t, os.Symlink("/proc/self/fd/0", filepath.Join(dir, "x"))) }), ErrKind},
		"a FIFO":                    {in(func(dir string) { must(t, unix.Mkfifo(filepath.Join(dir, "x"), 0o666)) }), ErrKind},
		"a socket":                  {in(func(dir string) { must(t, unix.Mknod(filepath.Join(dir, "x"), unix.S_IFSOCK|0o666, 0)) }), ErrKind},
		"a FIFO in a folder":        {in(func(dir string) { must(t, os.Mkdir(dir+"/y", 0o755)); must(t, unix.Mkfifo(dir+"/y/x", 0o666)) }), ErrKind},
		"..data leads out":          {data("/etc"), unix.EXDEV},
		"..data leads out by ..":    {data("../../../../../../etc"), unix.EXDEV},
		"..data leads to itself":    {data(current), unix.ELOOP},
		"..data is a file":          {data("..2026_11_26_20_00_00.1/good"), unix.ENOTDIR},
		"..data is a descriptor":    {data("/proc/self/root"), unix.EXDEV},
		"there is no volume at all": {filepath.Join(t.TempDir(), "none"), os.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			type result struct {
				files []iso9660.File
				err   error
			}
			done := make(chan result, 1)
			go func() {
				files, err := Read(c.root)
				done <- result{files, err}
			}()
			if got := testkit.Receive(t, done, "the refusal"); !errors.Is(got.err, c.want) || len(got.files) > 0 {
				t.Errorf("%q, error %v, want %v", text(got.files), got.err, c.want)
			}
		})
	}
}

// TestDeviceNodeIsNotOpened: a device node is not opened, not even to look at it. The node is of a driver that does not
// exist, whose opening would fail otherwise than the refusal.
func TestDeviceNodeIsNotOpened(t *testing.T) {
	root := volume(t, nil)
	folder, err := os.Readlink(filepath.Join(root, current))
	must(t, err)
	if err := unix.Mknod(filepath.Join(root, folder, "x"), unix.S_IFBLK|0o666, int(unix.Mkdev(251, 200))); err != nil {
		t.Fatalf("make a device node, which needs root: %v", err)
	}
	if _, err := Read(root); !errors.Is(err, ErrKind) {
		t.Errorf("error %v, want %v", err, ErrKind)
	}
}

// TestVolumeOfAnySizeIsReadBounded: a volume of any size costs no more than its bounds.
func TestVolumeOfAnySizeIsReadBounded(t *testing.T) {
	many := func(n int) map[string]string {
		contents := map[string]string{}
		for i := range n {
			contents[fmt.Sprint("key-", i)] = "x"
		}
		return contents
	}
	deep := func(n int) map[string]string { return map[string]string{strings.Repeat("d/", n) + "file": ""} }
	for name, c := range map[string]struct {
		contents map[string]string
		want     error
	}{
		"as many files as may be": {many(iso9660.MaxFiles), nil},
		"a file more":             {many(iso9660.MaxFiles + 1), ErrTooMany},
		"as large as may be":      {map[string]string{"a": strings.Repeat("x", MaxBytes-1), "b": "x"}, nil},
		"a byte more":             {map[string]string{"a": strings.Repeat("x", MaxBytes), "b": "x"}, ErrTooLarge},
		"one large file":          {map[string]string{"a": strings.Repeat("x", 64<<20)}, ErrTooLarge},
		"as deep as may be":       {deep(maxFolders), nil},
		"a folder deeper":         {deep(maxFolders + 1), ErrTooDeep},
	} {
		if files, err := Read(volume(t, c.contents)); !errors.Is(err, c.want) || err == nil && len(files) != len(c.contents) {
			t.Errorf("%s: %d files, error %v, want %v", name, len(files), err, c.want)
		}
	}
}

// TestFolderWithManyEntriesIsNotListed: a folder with very many entries is not listed to its end.
func TestFolderWithManyEntriesIsNotListed(t *testing.T) { crowded(t, 20_000) }

func crowded(t *testing.T, entries int) {
	root := volume(t, map[string]string{"good": ""})
	folder, err := os.Readlink(filepath.Join(root, current))
	must(t, err)
	dir := filepath.Join(root, folder)
	for i := range entries { // names of one file cost no space, but a file has 65000 names at most
		name := fmt.Sprintf("%s/%07d", dir, i)
		if i%30_000 == 0 {
			must(t, os.WriteFile(name, nil, 0o600))
		} else {
			must(t, os.Link(fmt.Sprintf("%s/%07d", dir, i-i%30_000), name))
		}
	}
	allocated := 0.0
	took := cputime.Of(t, func() {
		allocated = testing.AllocsPerRun(1, func() {
			if _, err := Read(root); !errors.Is(err, ErrTooMany) {
				t.Errorf("error %v, want %v", err, ErrTooMany)
			}
		})
	})
	if took > 5*time.Second || allocated > 10_000 {
		t.Errorf("it took %s and %.0f allocations", took, allocated)
	}
}

// TestReadWhileSwapped: all files are of one state of the volume, although the kubelet replaces the contents all the
// time.
func TestReadWhileSwapped(t *testing.T) {
	root := volume(t, map[string]string{"a": "0", "b": "0", "c": "0"})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		last := "..2026_11_26_20_00_00.1"
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			next, n := fmt.Sprintf("..%d", i), fmt.Sprint(i)
			swap(t, root, next, map[string]string{"a": n, "b": n, "c": n})
			os.RemoveAll(filepath.Join(root, last))
			last = next
		}
	}()
	defer func() { close(stop); <-stopped }()
	whole := 0
	for range 2000 {
		files, err := Read(root)
		if err != nil {
			continue // it changes again and again
		}
		whole++
		if len(files) != 3 || !bytes.Equal(files[0].Data, files[1].Data) || !bytes.Equal(files[1].Data, files[2].Data) {
			t.Fatalf("files of different states: %s", text(files))
		}
	}
	if whole == 0 {
		t.Error("the volume was never read")
	}
}

// FuzzRead makes a volume of what the bytes say, with links, FIFOs and folders: what is read is always in the volume.
func FuzzRead(f *testing.F) {
	f.Add([]byte("fa1fb2db/fb/c3la..data/"))
	f.Add([]byte("la/etc\x00pb\x00fc"))
	f.Fuzz(func(t *testing.T, script []byte) {
		outside := t.TempDir()
		must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("outside"), 0o600))
		root := filepath.Join(outside, "volume")
		must(t, os.Mkdir(root, 0o755))
		for step := range bytes.SplitSeq(script, []byte{0}) {
			makeEntry(root, string(step), filepath.Join(outside, "secret"))
		}
		files, err := Read(root)
		for _, file := range files {
			if bytes.Contains(file.Data, []byte("outside")) {
				t.Errorf("%s was read from outside", file.Path)
			}
		}
		if err == nil {
			if _, err := iso9660.Image("fuzz", files); err != nil && !errors.As(err, new(*iso9660.FileError)) {
				t.Errorf("no image of the files: %v", err)
			}
		}
	})
}

// makeEntry makes one entry: its first byte says what, and a colon ends its name.
func makeEntry(root, step, outside string) {
	if step == "" {
		return
	}
	name, rest, _ := strings.Cut(step[1:], ":")
	at := filepath.Join(root, filepath.Clean("/"+name))
	if len(at) > 3000 || at == root || strings.Contains(name, "outside") {
		return
	}
	switch step[0] {
	case 'd':
		os.MkdirAll(at, 0o755)
	case 'l':
		os.Symlink(rest, at)
	case 'o':
		os.Symlink(outside, at)
	case 'u':
		os.Symlink("../secret", at)
	case 'p':
		unix.Mkfifo(at, 0o666)
	case 'f':
		os.WriteFile(at, []byte("inside"), 0o600)
	}
}
