package disk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

func open(t *testing.T, path string, block bool, bytes int64, preallocate bool) *Disk {
	t.Helper()
	d, err := Open(path, block, bytes, preallocate)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// content has data, holes of all lengths, and an odd end.
func content(size int) []byte {
	p := make([]byte, size)
	random := rand.New(rand.NewPCG(1, 2))
	for at := 0; at < size; {
		n := min(1+random.IntN(600<<10), size-at)
		if random.IntN(2) == 0 {
			for i := range n {
				p[at+i] = byte(i)
			}
		}
		at += n
	}
	return p
}

func blocks(t *testing.T, path string) int64 {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		t.Fatal(err)
	}
	return s.Blocks * 512
}

// TestCopyHasZerosAndHoles: a file has the content, then zeros up to its size, and holes for zeros.
func TestCopyHasZerosAndHoles(t *testing.T) {
	t.Parallel()
	const size = 20 * mib
	want := content(10*mib + 77)
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, bytes.Repeat([]byte("old"), 10*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	d := open(t, path, false, size, false)
	if err := d.Clear(); err != nil {
		t.Fatal(err)
	}
	told := int64(0)
	end, err := d.Copy(context.Background(), iotest.HalfReader(bytes.NewReader(want)), 0, func(offset int64) error { told = offset; return nil })
	if err := errors.Join(err, d.Finish(context.Background())); err != nil || end != int64(len(want)) || told != end/chunk*chunk {
		t.Fatalf("copied %d bytes, told %d: %v", end, told, err)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, append(want, make([]byte, size-len(want))...)) {
		t.Errorf("the disk has %d other bytes: %v", len(got), err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != fileMode {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if taken := blocks(t, path); taken > 8*mib {
		t.Errorf("the disk takes %d bytes", taken)
	}
	if err := d.Empty(); err != nil || blocks(t, path) != 0 {
		t.Errorf("emptied: %v", err)
	}
}

// TestWhyCopyingEnded: why copying ended.
func TestWhyCopyingEnded(t *testing.T) {
	t.Parallel()
	fault := errors.New("the fault")
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		ctx   context.Context
		from  io.Reader
		wrote error
		want  error
	}{
		"too large":   {context.Background(), bytes.NewReader(make([]byte, 3*mib+1)), nil, ErrLarger},
		"just fits":   {context.Background(), bytes.NewReader(make([]byte, 3*mib)), nil, nil},
		"cannot read": {context.Background(), io.MultiReader(bytes.NewReader(make([]byte, 100)), iotest.ErrReader(fault)), nil, fault},
		"cut off":     {context.Background(), iotest.ErrReader(io.ErrUnexpectedEOF), nil, io.ErrUnexpectedEOF},
		"told":        {context.Background(), bytes.NewReader(make([]byte, mib)), fault, fault},
		"ended":       {ended, bytes.NewReader(make([]byte, mib)), nil, context.Canceled},
	} {
		d := open(t, filepath.Join(t.TempDir(), "disk.img"), false, 3*mib, false)
		if _, err := d.Copy(c.ctx, c.from, 0, func(int64) error { return c.wrote }); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPreallocatedFileHasNoHoles: the file has no holes, whether it is filled or not.
func TestPreallocatedFileHasNoHoles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk.img")
	d := open(t, path, false, 8*mib, true)
	if err := errors.Join(d.Clear(), d.Finish(context.Background())); err != nil {
		t.Fatal(err)
	}
	if taken := blocks(t, path); taken < 8*mib {
		t.Errorf("the disk takes %d bytes", taken)
	}
	// As on a file system that allocates nothing ahead.
	if err := errors.Join(d.file.Truncate(0), d.file.Truncate(8*mib)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.file.WriteAt([]byte("content"), 5*mib); err != nil {
		t.Fatal(err)
	}
	if err := d.zeroHoles(context.Background()); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 7)
	if _, err := d.file.ReadAt(text, 5*mib); err != nil || string(text) != "content" || blocks(t, path) < 8*mib {
		t.Errorf("the disk takes %d bytes, and has %q: %v", blocks(t, path), text, err)
	}
}

// TestOpenRefuses: what is no disk, or too small.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file, link, fifo := filepath.Join(folder, "file"), filepath.Join(folder, "link"), filepath.Join(folder, "fifo")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(file, link), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path  string
		block bool
		bytes int64
	}{
		"a folder": {folder, false, mib}, "a link": {link, false, mib}, "a FIFO": {fifo, false, mib}, "no folder": {folder + "/x/y", false, mib},
		"no size": {file, false, 0}, "a file for a device": {file, true, mib}, "a character device": {"/dev/null", true, mib}, "no device": {folder + "/x", true, mib},
	} {
		if d, err := Open(c.path, c.block, c.bytes, false); err == nil {
			d.Close()
			t.Errorf("%s: opened", name)
		}
	}
}

// loopDevice makes a block device.
func loopDevice(t *testing.T, size int64) (device, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "device")
	if err := errors.Join(os.WriteFile(file, bytes.Repeat([]byte("old "), int(size/4)), 0o600)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		t.Fatalf("THIS MACHINE HAS NO LOOP DEVICES, and block volumes cannot be tested: losetup: %v: %s", err, out)
	}
	device = strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
	return device, file
}

// TestZerosAreWrittenToADevice: zeros are written to a device, for it has other content, and what is behind the image stays.
func TestZerosAreWrittenToADevice(t *testing.T) {
	t.Parallel()
	device, file := loopDevice(t, 16*mib)
	want := content(9*mib + 512)
	d := open(t, device, true, 12*mib, false)
	if err := d.Clear(); err != nil {
		t.Fatal(err)
	}
	_, err := d.Copy(context.Background(), bytes.NewReader(want), 0, func(int64) error { return nil })
	if err := errors.Join(err, d.Finish(context.Background())); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got[:len(want)], want) || !bytes.Equal(got[len(want):], bytes.Repeat([]byte("old "), (16*mib-len(want))/4)) {
		t.Errorf("the device has something else: %v", err)
	}
	if err := errors.Join(d.ZeroFrom(context.Background(), int64(len(want))), d.Sync()); err != nil {
		t.Fatal(err)
	}
	got, err = os.ReadFile(file)
	if err != nil || !bytes.Equal(got[:len(want)], want) || len(bytes.Trim(got[len(want):12*mib], "\x00")) > 0 || !bytes.HasPrefix(got[12*mib:], []byte("old ")) {
		t.Errorf("an earlier owner's bytes are left: %v", err)
	}
	if _, err := Open(device, true, 16*mib+1, false); err == nil || !strings.Contains(err.Error(), "16777216 bytes") {
		t.Errorf("a device that is too small: %v", err)
	}
}

// TestFullClaimIsAnErrorWithSizes: a claim without room gives an error with the sizes.
func TestFullClaimIsAnErrorWithSizes(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := unix.Mount("none", folder, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatalf("mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(folder, unix.MNT_DETACH) })
	d := open(t, filepath.Join(folder, "disk.img"), false, 20*mib, false)
	if err := d.Clear(); err != nil || d.Full() {
		t.Fatalf("clear: %v", err)
	}
	_, err := d.Copy(context.Background(), bytes.NewReader(bytes.Repeat([]byte("x"), 10*mib)), 0, func(int64) error { return nil })
	if !errors.Is(err, ErrFull) || !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "the disk of 20971520 bytes takes 4194304") || !d.Full() {
		t.Errorf("copy: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	all := open(t, filepath.Join(folder, "all.img"), false, 20*mib, true)
	defer all.Close()
	if err := all.Clear(); !errors.Is(err, ErrFull) {
		t.Errorf("allocate: %v", err)
	}
}

// TestSavedStateIsReadBack: a state is what was saved, or nothing where it cannot be read.
func TestSavedStateIsReadBack(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := States{Path: filepath.Join(folder, "disk.img"+StateSuffix)}
	if _, found, err := s.Load(); found || err != nil {
		t.Errorf("there is a state: %v", err)
	}
	want := State{Task: "task", Validator: "Etag 1", Size: 5, Next: 3, Done: 2, Total: 9}
	if err := s.Save(want); err != nil {
		t.Fatal(err)
	}
	if got, found, err := s.Load(); got != want || !found || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, text := range []string{"", "{", `{"next":-1}`, `{"done":-1}`, `{"next":1e99}`, `{"task":"` + strings.Repeat("x", 1<<20) + `"}`} {
		if err := os.WriteFile(s.Path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, found, err := s.Load(); found || err != nil {
			t.Errorf("%.30s: %+v, %v", text, got, err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, ".new-123"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(folder); len(left) != 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := s.Remove(); err != nil {
		t.Errorf("removed again: %v", err)
	}
	bad := States{Path: filepath.Join(folder, "none", "x")}
	if err := bad.Save(want); err == nil {
		t.Error("saved into no folder")
	}
}

// TestDiskIsOneImportersAtATime: a disk is one importer's at a time.
func TestDiskIsOneImportersAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	first, err := Open(path, false, 1<<20, false)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := Open(path, false, 1<<20, false); !errors.Is(err, ErrBusy) {
		t.Errorf("%v, %v; want %v", second, err, ErrBusy)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	third, err := Open(path, false, 1<<20, false)
	if err != nil {
		t.Fatal(err)
	}
	third.Close()
}
