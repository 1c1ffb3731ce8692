package diskimage

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// state returns all of a file that nobody but its owner may have changed.
func state(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("stat", "--format=%F %a %u:%g %s %h %Y %i", path).CombinedOutput()
	if err != nil {
		t.Fatalf("stat: %v: %s", err, out)
	}
	return string(out)
}

// TestHostileVolume: whatever lies in a volume as disk.img is refused by what
// it is, not touched, and not replaced.
func TestHostileVolume(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	write(t, outside, bytes.Repeat([]byte("secret"), 1024))
	for _, tt := range []struct {
		name string
		make func(disk string) error
		want string
	}{
		{"symbolic link", func(disk string) error { return os.Symlink(outside, disk) }, "/disk.img is a symbolic link, not a regular file"},
		{"link into proc", func(disk string) error { return os.Symlink("/proc/self/environ", disk) }, "symbolic link"},
		{"link to nothing", func(disk string) error { return os.Symlink("nothing", disk) }, "symbolic link"},
		{"FIFO", func(disk string) error { return unix.Mkfifo(disk, 0o666) }, "is a FIFO"},
		{"folder", func(disk string) error { return os.Mkdir(disk, 0o777) }, "is a folder"},
		{"character device", func(disk string) error { return unix.Mknod(disk, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) }, "is a character device"},
		{"block device", func(disk string) error { return unix.Mknod(disk, unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))) }, "is a block device"},
		{"socket", func(disk string) error { return unix.Mknod(disk, unix.S_IFSOCK|0o666, 0) }, "is a socket"},
		{"hard link", func(disk string) error {
			other := filepath.Join(filepath.Dir(disk), "other")
			return errors.Join(os.WriteFile(other, make([]byte, 1024), 0o666), os.Link(other, disk))
		}, "has 2 names"},
		{"empty", func(disk string) error { return os.WriteFile(disk, nil, 0o666) }, "is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			disk := filepath.Join(root, "disk.img")
			if err := tt.make(disk); err != nil {
				t.Fatal(err)
			}
			before, target := state(t, disk), state(t, outside)
			for _, readOnly := range []bool{false, true} {
				if info, err := InspectVolume(root, "disk.img", readOnly); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("read-only %v: %+v, %v, want %q", readOnly, info, err, tt.want)
				}
			}
			// Nothing makes a disk over it either.
			if err := CreateVolume(root, "disk.img", 1<<20); err != nil {
				t.Errorf("make a disk where something is: %v", err)
			}
			if after := state(t, disk); after != before {
				t.Errorf("was %s, is %s", before, after)
			}
			if after := state(t, outside); after != target {
				t.Errorf("what is outside was %s, is %s", target, after)
			}
			if names, err := filepath.Glob(filepath.Join(root, ".*")); err != nil || len(names) > 0 {
				t.Errorf("left behind: %q (%v)", names, err)
			}
		})
	}
}

// TestQCOW2InVolume: a header means nothing, the disk is raw.
func TestQCOW2InVolume(t *testing.T) {
	root := t.TempDir()
	qemuImg(t, "create", "-q", "-f", "qcow2", filepath.Join(root, "disk.img"), "64M")
	stat, err := os.Stat(filepath.Join(root, "disk.img"))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := InspectVolume(root, "disk.img", false); err != nil || info.Size != stat.Size() || info.Missing {
		t.Errorf("%+v, %v, want a raw disk of the file's %d bytes", info, err, stat.Size())
	}
}

func TestCreateVolume(t *testing.T) {
	root := t.TempDir()
	info, err := InspectVolume(root, "disk.img", false)
	if err != nil || !info.Missing || info.Free <= 0 || info.Size != 0 {
		t.Errorf("an empty volume: %+v, %v", info, err)
	}
	if _, err := InspectVolume(root, "disk.img", true); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "only read") {
		t.Errorf("an empty volume that is read-only: %v", err)
	}
	const size = 1 << 30
	if err := CreateVolume(root, "disk.img", size); err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(root, "disk.img")
	stat, err := os.Stat(disk)
	if err != nil || stat.Size() != size || stat.Mode() != 0o660 || stat.Sys().(*syscall.Stat_t).Blocks > 16 {
		t.Errorf("made %+v, %v, want a sparse file of mode 0660", stat, err)
	}
	before := state(t, disk)
	if err := CreateVolume(root, "disk.img", 2*size); err != nil {
		t.Error(err)
	}
	if after := state(t, disk); after != before {
		t.Errorf("was %s, is %s", before, after)
	}
	if names, err := os.ReadDir(root); err != nil || len(names) != 1 {
		t.Errorf("the volume holds %v (%v)", names, err)
	}
	f, err := OpenVolume(root, "disk.img", false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE != unix.O_RDWR {
		t.Errorf("opened with flags %#x (%v)", flags, err)
	}
	if info, err := InspectVolume(root, "disk.img", false); err != nil || info.Missing || info.Size != size || info.Taken > 16*512 {
		t.Errorf("%+v, %v", info, err)
	}
}

// asOther runs the test binary as user 107, for which the variable names what
// to look at, and returns the error that it prints.
func asOther(t *testing.T, variable, path string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir, whose parent others may not enter.
	dir, err := os.MkdirTemp("", "asother")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "test")
	data, err := os.ReadFile(self)
	if err := errors.Join(err, os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	testkit.Program(t, binary, data)
	cmd := exec.Command(binary)
	cmd.Dir, cmd.Env = "/", []string{variable + "=" + path}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 107, Gid: 107}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestMissingRightIsExplained: who may not is told what the mode is, whose it is, and what to do.
func TestMissingRightIsExplained(t *testing.T) {
	folder := func(t *testing.T) string {
		root, err := os.MkdirTemp("", "volume")
		if err := errors.Join(err, os.Chmod(root, 0o755)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(root) })
		return root
	}
	for name, tt := range map[string]struct {
		variable string
		make     func(t *testing.T) string
		want     []string
	}{
		"disk": {asUserVolume, func(t *testing.T) string {
			root := folder(t)
			if err := os.WriteFile(filepath.Join(root, "disk.img"), make([]byte, 512), 0o640); err != nil {
				t.Fatal(err)
			}
			return root
		}, []string{"/disk.img has mode 0640 and owner 0:0, and cannot be written by user 107", "group 107"}},
		"folder": {asUserVolume, folder, []string{"no /disk.img, and none can be made", "mode 0755 and owner 0:0", "user 107"}},
		"device": {asUserBlock, func(t *testing.T) string {
			device, _ := loopDevice(t, 1<<20)
			return device
		}, []string{"the block device has mode 06", "owner 0:", "cannot be written by user 107", "device_ownership_from_security_context", "group disk (6)"}},
	} {
		t.Run(name, func(t *testing.T) {
			out := asOther(t, tt.variable, tt.make(t))
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("%s: want %q in it", out, want)
				}
			}
		})
	}
}

// loopDevice makes a block device of a file of size bytes.
func loopDevice(t *testing.T, size int64) (device, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "device")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, size)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		t.Fatalf("THIS MACHINE HAS NO LOOP DEVICES, and block volumes cannot be tested: losetup: %v: %s", err, out)
	}
	device = strings.TrimSpace(string(out))
	t.Cleanup(func() { exec.Command("losetup", "--detach", device).Run() })
	return device, file
}

func TestBlockDeviceHasOneWriter(t *testing.T) {
	device, file := loopDevice(t, 4<<20)
	if info, err := InspectBlock(device, false); err != nil || info.Size != 4<<20 {
		t.Errorf("%+v, %v", info, err)
	}
	first, err := OpenBlock(device, false)
	if err != nil {
		t.Fatal(err)
	}
	// One VM alone may write to it; looking at it is no harm.
	if second, err := OpenBlock(device, false); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "mounted, or another VM has it") {
		t.Errorf("opened twice: %v, %v", second, err)
	}
	if _, err := InspectBlock(device, false); err != nil {
		t.Error(err)
	}
	if err := errors.Join(os.Truncate(file, 8<<20), exec.Command("losetup", "--set-capacity", device).Run()); err != nil {
		t.Fatal(err)
	}
	if info, err := InspectBlock(device, true); err != nil || info.Size != 8<<20 {
		t.Errorf("after it has grown: %+v, %v", info, err)
	}
	first.Close()
	again, err := OpenBlock(device, false)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	for path, want := range map[string]string{file: "is a regular file, not a block device", "/dev/null": "is a character device", "/nonexistent": "no such file"} {
		if _, err := InspectBlock(path, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(device, link); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBlock(link, false); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a link: %v", err)
	}
}

// TestDiskOfEachSizeIsOpenedByQEMU: a disk has any size, and QEMU opens the disk in the way that the facts say.
func TestDiskOfEachSizeIsOpenedByQEMU(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "disk.img")
	for _, size := range []int64{1, 511, 512, 513, 4095, 4096, 4608, 10_000_001, 10_000_384, 10_002_432} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		write(t, path, nil)
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		facts, err := InspectVolume(root, "disk.img", false)
		if err != nil || facts.Size != size || facts.Direct && size%512 != 0 || !facts.Direct && size%4096 == 0 && DirectWorks(root) {
			t.Errorf("%d bytes: %+v, %v", size, facts, err)
		}
		cache := fmt.Sprintf(`"cache":{"direct":%t}`, facts.Direct)
		qemu := exec.Command("qemu-system-x86_64", "-S", "-machine", "none", "-nodefaults", "-display", "none", "-qmp", "stdio",
			"-blockdev", fmt.Sprintf(`{"driver":"raw","node-name":"disk",%s,"file":{"driver":"file","filename":%q,%s}}`, cache, path, cache),
			"-object", "iothread,id=t")
		// Nothing but an export of this machine, which has no devices, asks to write to the disk.
		qemu.Stdin = strings.NewReader(`{"execute":"qmp_capabilities"}{"execute":"nbd-server-start","arguments":{"addr":{"type":"unix","data":{"path":"` + filepath.Join(root, "nbd") + `"}}}}` +
			`{"execute":"block-export-add","arguments":{"type":"nbd","id":"e","node-name":"disk","writable":true}}{"execute":"quit"}`)
		if out, err := qemu.CombinedOutput(); err != nil || bytes.Contains(out, []byte(`"error"`)) {
			t.Errorf("%d bytes, %s: %v\n%s", size, cache, err, out)
		}
	}
}
