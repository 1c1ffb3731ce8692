package diskimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// asUser, in the environment, makes the test binary a process that finds the
// disk in the folder named there and prints what went wrong.
const asUser = "DISKIMAGE_TEST_FIND"

// asUserVolume and asUserBlock do the same with a volume and a block device.
const (
	asUserVolume = "DISKIMAGE_TEST_VOLUME"
	asUserBlock  = "DISKIMAGE_TEST_BLOCK"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(asUser); root != "" {
		_, err := Find(root, "")
		fmt.Print(err)
		return
	}
	if root := os.Getenv(asUserVolume); root != "" {
		_, err := InspectVolume(root, "disk.img", false)
		fmt.Print(err)
		return
	}
	if device := os.Getenv(asUserBlock); device != "" {
		_, err := InspectBlock(device, false)
		fmt.Print(err)
		return
	}
	os.Exit(m.Run())
}

func qemuImg(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("qemu-img", args...).CombinedOutput(); err != nil {
		t.Fatalf("qemu-img %s: %v (Debian's qemu-utils): %s", strings.Join(args, " "), err, out)
	}
}

// volume makes an image volume whose only disk is disk/NAME, and returns both paths.
func volume(t *testing.T, name string) (root, disk string) {
	t.Helper()
	root = t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "disk"), 0o755); err != nil {
		t.Fatal(err)
	}
	return root, filepath.Join(root, "disk", name)
}

// luks makes an encrypted image. QEMU measures how quickly it computes keys, and
// gives up on a machine too busy to tell.
func luks(t *testing.T, disk string) {
	args := []string{"create", "-q", "-f", "qcow2", "--object", "secret,id=s,data=secret",
		"-o", "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10", disk, "3M"}
	for range 20 {
		out, err := exec.Command("qemu-img", args...).CombinedOutput()
		if err == nil {
			return
		}
		if !bytes.Contains(out, []byte("accurate CPU usage")) {
			t.Fatalf("make an encrypted image: %v: %s", err, out)
		}
	}
	t.Fatal("make an encrypted image: QEMU could not measure the CPU's speed in 20 attempts")
}

// What QEMU makes: either known with its size, or refused with the reason.
func TestFindQEMUImages(t *testing.T) {
	create := func(options string, more ...string) func(*testing.T, string) {
		return func(t *testing.T, disk string) {
			args := append([]string{"create", "-q", "-f", "qcow2", "-o", options}, more...)
			qemuImg(t, append(args, disk, "3M")...)
		}
	}
	tests := []struct {
		name    string
		make    func(t *testing.T, disk string)
		format  qemuargs.ImageFormat
		size    int64
		refused string
	}{
		{"qcow2 v3", create("compat=1.1"), qemuargs.QCOW2, 3 << 20, ""},
		{"qcow2 v2", create("compat=0.10"), qemuargs.QCOW2, 3 << 20, ""},
		{"zstd", create("compression_type=zstd"), qemuargs.QCOW2, 3 << 20, ""},
		{"extended l2", create("extended_l2=on"), qemuargs.QCOW2, 3 << 20, ""},
		{"smallest cluster", create("cluster_size=512"), qemuargs.QCOW2, 3 << 20, ""},
		{"largest cluster", create("cluster_size=2M"), qemuargs.QCOW2, 3 << 20, ""},
		{"compressed data", func(t *testing.T, disk string) {
			raw := filepath.Join(t.TempDir(), "raw")
			write(t, raw, bytes.Repeat([]byte("data"), 1<<18))
			qemuImg(t, "convert", "-c", "-f", "raw", "-O", "qcow2", raw, disk)
		}, qemuargs.QCOW2, 1 << 20, ""},
		{"raw", func(t *testing.T, disk string) { qemuImg(t, "create", "-q", "-f", "raw", disk, "3M") }, qemuargs.Raw, 3 << 20, ""},
		{"vmdk is raw to us", func(t *testing.T, disk string) { qemuImg(t, "create", "-q", "-f", "vmdk", disk, "3M") }, qemuargs.Raw, 0, ""},
		{"backing file", func(t *testing.T, disk string) {
			base := filepath.Join(t.TempDir(), "base")
			qemuImg(t, "create", "-q", "-f", "raw", base, "1M")
			qemuImg(t, "create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", disk)
		}, "", 0, "backing file"},
		{"data file", func(t *testing.T, disk string) {
			create("data_file="+filepath.Join(t.TempDir(), "data"))(t, disk)
		}, "", 0, "incompatible features 0x4"},
		{"luks", luks, "", 0, "encrypted"},
		{"odd size", func(t *testing.T, disk string) { write(t, disk, make([]byte, 1000)) }, "", 0, "multiple of 512"},
		{"empty", func(t *testing.T, disk string) { write(t, disk, nil) }, "", 0, "empty"},
		{"cut off in the header", truncated(60), "", 0, "cut off"},
		{"cut off in the v3 header", truncated(100), "", 0, "cut off"},
		{"cut off before the tables", truncated(4096), "", 0, "cut off"},
		{"marked dirty", patched(72+7, 1), "", 0, "incompatible features 0x1"},
		{"marked corrupt", patched(72+7, 2), "", 0, "incompatible features 0x2"},
		{"unknown feature", patched(72, 0x80), "", 0, "incompatible features"},
		{"version 4", patched(7, 4), "", 0, "version 4"},
		{"claims 16 EiB", patched(24, 0xff), "", 0, "claims a size"},
		{"cluster size 0", patched(23, 0), "", 0, "cluster size"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root, disk := volume(t, "disk.img")
			tt.make(t, disk)
			got, err := Find(root, "")
			if tt.refused != "" {
				if err == nil || tt.refused != "" && !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), tt.refused) {
					t.Errorf("got %+v, error %v, want it refused with %q", got, err, tt.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Path != "disk/disk.img" || got.Format != tt.format || tt.size != 0 && got.VirtualSize != tt.size {
				t.Errorf("got %+v, want %s of %d bytes", got, tt.format, tt.size)
			}
		})
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func truncated(size int64) func(*testing.T, string) {
	return func(t *testing.T, disk string) {
		qemuImg(t, "create", "-q", "-f", "qcow2", disk, "1M")
		if err := os.Truncate(disk, size); err != nil {
			t.Fatal(err)
		}
	}
}

// patched returns an image with one byte of its header changed.
func patched(offset int, value byte) func(*testing.T, string) {
	return func(t *testing.T, disk string) {
		qemuImg(t, "create", "-q", "-f", "qcow2", disk, "1M")
		data, err := os.ReadFile(disk)
		if err != nil {
			t.Fatal(err)
		}
		data[offset] = value
		write(t, disk, data)
	}
}

// An image volume is what a tenant put into a container image.
func TestFindPaths(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, make([]byte, 512))
	link := func(target, name string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	file := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			for _, name := range names {
				os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755)
				write(t, filepath.Join(root, name), make([]byte, 512))
			}
		}
	}
	tests := []struct {
		name    string
		make    func(t *testing.T, root string)
		path    string
		want    string // path found; empty: refused
		refused string
	}{
		{"only file", file("disk/any.name"), "", "disk/any.name", ""},
		{"two files", file("disk/a", "disk/b"), "", "", "more than one file"},
		{"two files, one named", file("disk/a", "disk/b"), "/disk/b", "disk/b", ""},
		{"elsewhere", file("images/a"), "images/a", "images/a", ""},
		{"no folder", file("images/a"), "", "", "no folder /disk"},
		{"empty folder", func(t *testing.T, root string) { os.Mkdir(filepath.Join(root, "disk"), 0o755) }, "", "", "empty"},
		{"no such file", file("disk/a"), "/disk/c", "", "no file /disk/c"},
		{"folder for a disk", file("disk/a/b"), "", "", "regular file"},
		{"dots stay inside", file("disk/a"), "../../../disk/a", "disk/a", ""},
		{"dots out", file("disk/a"), "/disk/../../.." + secret, "", "no file"},
		{"link to a file outside", link(secret, "disk.img"), "/disk.img", "", "symbolic link"},
		{"link to a file inside", func(t *testing.T, root string) { file("disk/a")(t, root); link("disk/a", "l")(t, root) }, "/l", "", "symbolic link"},
		{"link to a folder", link(filepath.Dir(secret), "d"), "/d/secret", "", "symbolic link"},
		{"/disk is a link", link(filepath.Dir(secret), "disk"), "", "", "no folder /disk"},
		{"FIFO", func(t *testing.T, root string) {
			if err := unix.Mkfifo(filepath.Join(root, "fifo"), 0o666); err != nil {
				t.Fatal(err)
			}
		}, "/fifo", "", "regular file"},
		{"socket", func(t *testing.T, root string) {
			listener, err := net.Listen("unix", filepath.Join(root, "s"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { listener.Close() })
		}, "/s", "", ""},
		{"device node", func(t *testing.T, root string) {
			// The node's memory, say. This one, /dev/null, does no harm.
			if err := unix.Mknod(filepath.Join(root, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
				t.Fatalf("make a device node (run the tests as root): %v", err)
			}
		}, "/null", "", "regular file"},
		{"block device", func(t *testing.T, root string) {
			if err := unix.Mknod(filepath.Join(root, "none"), unix.S_IFBLK|0o666, int(unix.Mkdev(259, 0xfffff))); err != nil {
				t.Fatal(err)
			}
		}, "/none", "", ""},
		{"NUL in the path", file("disk/a"), "/disk/a\x00b", "", ""},
		{"a name longer than a file system's", file("disk/a"), "/" + strings.Repeat("x", 4096), "", ""},
		{"a path longer than the kernel's", file("disk/a"), strings.Repeat("/x", 4096), "", ""},
		{"through the links of /proc", link("/proc/self/root", "p"), "/p/etc/passwd", "", "symbolic link"},
		{"root itself", file("disk/a"), "/", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			tt.make(t, root)
			got, err := Find(root, tt.path)
			if tt.want != "" {
				if err != nil || got.Path != tt.want {
					t.Errorf("got %+v, error %v, want %s", got, err, tt.want)
				}
				return
			}
			if err == nil || tt.refused != "" && !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("got %+v, error %v, want it refused with %q", got, err, tt.refused)
			}
		})
	}
}

// TestFindFile: a kernel's files are taken by names that QEMU takes for one file.
func TestFindFile(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"initrd", "initrd,second", "initrd second"} {
		write(t, filepath.Join(root, name), []byte("x"))
	}
	if got, err := FindFile(root, "/./initrd"); err != nil || got != "initrd" {
		t.Errorf("got %q, error %v, want initrd", got, err)
	}
	for _, name := range []string{"/initrd,second", "/initrd second", "/initrd,,second", "/initrd,/etc/passwd"} {
		if got, err := FindFile(root, name); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "QEMU would split it") {
			t.Errorf("%s: got %q, error %v, want it refused", name, got, err)
		}
	}
}

// TestFindRaces: a file that is swapped for a link, again and again while it is
// looked for, never leads out.
func TestFindRaces(t *testing.T) {
	root := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, make([]byte, 1024))
	disk, good := filepath.Join(root, "disk.img"), filepath.Join(root, "good")
	write(t, good, make([]byte, 512))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			next := filepath.Join(root, "next")
			if i%2 == 0 {
				os.Symlink(secret, next)
			} else {
				os.Link(good, next)
			}
			os.Rename(next, disk)
			os.Remove(next) // a rename of two links of one file does nothing
		}
	}()
	found := 0
	for range 4000 {
		info, err := Find(root, "disk.img")
		if err == nil {
			found++
			if info.VirtualSize != 512 {
				t.Fatalf("found what the link leads to: %+v", info)
			}
		}
	}
	close(stop)
	<-stopped
	t.Logf("found the file %d times", found)
}

// Root may read everything, so this is tried as another user.
func TestFindUnreadable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test changes its user: run it as root")
	}
	// Every folder down to it must be open to that user.
	root, err := os.MkdirTemp("/tmp", "diskimage-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	disk := filepath.Join(root, "disk", "disk.img")
	if err := errors.Join(os.Chmod(root, 0o755), os.Mkdir(filepath.Dir(disk), 0o755)); err != nil {
		t.Fatal(err)
	}
	write(t, disk, make([]byte, 512))
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(root, "find")
	testkit.Program(t, program, self)
	for mode, want := range map[os.FileMode]string{
		0o640: "disk image cannot be used: /disk/disk.img has mode 0640 and owner 0:0, and cannot be read by user 107; make it readable by 107:107",
		0o644: "<nil>",
	} {
		if err := os.Chmod(disk, mode); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program)
		cmd.Dir = "/"
		cmd.Env = []string{asUser + "=" + root}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 107, Gid: 107}}
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("mode %04o: %v, got %q, want %q", mode, err, out, want)
		}
	}
}

func TestDirectIOIsFoundOut(t *testing.T) {
	dir := t.TempDir()
	// The kernel is asked the same by another way.
	f, err := os.OpenFile(filepath.Join(dir, "probe"), os.O_CREATE|os.O_RDWR|unix.O_DIRECT, 0o600)
	want := err == nil
	if want {
		f.Close()
	}
	os.Remove(filepath.Join(dir, "probe"))
	if got := DirectWorks(dir); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if DirectWorks(filepath.Join(dir, "missing")) {
		t.Error("a missing folder works")
	}
}

// A header is accepted only if nothing in it leads to another file and all
// that is claimed is within bounds; it never makes header panic.
func FuzzHeader(f *testing.F) {
	good := make([]byte, 112)
	copy(good, "QFI\xfb")
	for offset, v := range map[int]uint32{4: 3, 20: 16, 28: 1 << 20, 36: 1, 44: 3 << 16, 52: 1 << 16, 96: 4, 100: 104} {
		binary.BigEndian.PutUint32(good[offset:], v)
	}
	if format, size, err := header(bytes.NewReader(good), 1<<20); err != nil || format != qemuargs.QCOW2 || size != 1<<20 {
		f.Fatalf("the first seed is not good: %s, %d, %v", format, size, err)
	}
	f.Add(good, int64(1<<20))
	f.Add(good[:72], int64(72))
	f.Add([]byte("QFI\xfb"), int64(4))
	f.Add([]byte("raw"), int64(512))
	f.Add([]byte{}, int64(0))
	f.Fuzz(func(t *testing.T, h []byte, size int64) {
		if size < int64(len(h)) {
			size = int64(len(h)) // a file's size is never less than what was read of it
		}
		format, virtual, err := header(bytes.NewReader(h), size)
		if err != nil {
			if !errors.Is(err, ErrUnusable) {
				t.Fatalf("error of an unexpected kind: %v", err)
			}
			return
		}
		magic := bytes.HasPrefix(h, []byte("QFI\xfb"))
		switch {
		case virtual <= 0:
			t.Fatalf("accepted with a size of %d", virtual)
		case (format == qemuargs.QCOW2) != magic:
			t.Fatalf("format %s, magic number: %v", format, magic)
		case !magic:
			return
		}
		if virtual > maxVirtualSize || !bytes.Equal(h[8:16], make([]byte, 8)) || !bytes.Equal(h[32:36], make([]byte, 4)) {
			t.Fatalf("accepted: %x", h)
		}
		if h[7] == 3 && (!bytes.Equal(h[72:79], make([]byte, 7)) || h[79]&^0x18 != 0) {
			t.Fatalf("accepted with features %x", h[72:80])
		}
	})
}

// TestFactsOfAFileWithALease: whoever hands out a file may have a lease on it. To open such a file would wait for them.
func TestFactsOfAFileWithALease(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, make([]byte, 512), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := Facts(f)
		done <- err
	}()
	if err := testkit.ReceiveWithin(t, 20*time.Second, done, "the facts"); err != nil {
		t.Error(err)
	}
}
