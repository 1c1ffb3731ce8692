package launcher

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// onVolume gives the VM a second disk, in a volume of its own.
func (v *vm) onVolume(mode qemuargs.VolumeMode, path string, create int64) {
	v.request.Machine.Disks = append(v.request.Machine.Disks,
		qemuargs.Disk{Name: "data", Driver: qemuargs.VirtioBlk, PCI: &qemuargs.PCIAddress{Bus: "pci.2"},
			Image: qemuargs.Image{Path: path, Format: qemuargs.Raw, Volume: mode, Create: create}})
}

// grow makes a disk of the machine larger, and returns the size that it then has.
func (v *vm) grow(m *qemuargs.Machine, disk int, size int64) (int64, error) {
	v.Helper()
	next := *m
	next.Disks = slices.Clone(m.Disks)
	next.Disks[disk].Image.Size = size
	job, now, err := v.becomes(next)
	if err != nil {
		return 0, err
	}
	if job.State != control.JobDone {
		return 0, errors.New(job.Error)
	}
	*m = now
	return now.Disks[disk].Image.Size, nil
}

// TestVolumesDiskIsMadeAndGrows: the disk is made where it is missing, grows while the guest runs,
// never shrinks, and no second VM gets it meanwhile.
func TestVolumesDiskIsMadeAndGrows(t *testing.T) {
	t.Parallel()
	v := launch(t)
	volume := v.path("volume")
	v.must(os.Mkdir(volume, 0o700))
	disk := filepath.Join(volume, "disk.img")
	v.onVolume(qemuargs.FileVolume, disk, 8<<20)
	started := v.boot()
	m := *started.Machine
	for _, tt := range []struct{ ask, want int64 }{{4 << 20, 8 << 20}, {16 << 20, 16 << 20}, {1 << 60, 0}} {
		got, err := v.grow(&m, 1, tt.ask)
		stat, statErr := os.Stat(disk)
		v.must(statErr)
		if tt.want == 0 {
			// As much as the file system has room for.
			tt.want = stat.Size()
			if tt.want < 16<<20 || tt.want > 1<<50 {
				t.Errorf("asked for all, it has %d bytes", tt.want)
			}
		}
		if err != nil || got != tt.want || stat.Size() != tt.want {
			t.Errorf("asked for %d bytes: %d, %v, and the file has %d; want %d", tt.ask, got, err, stat.Size(), tt.want)
		}
	}
	less := m
	less.Disks = slices.Clone(m.Disks)
	less.Disks[1].Image.Size = 8 << 20
	const restart = "needs a restart: disks[data].image.size"
	if _, _, err := v.becomes(less); err == nil || !strings.Contains(err.Error(), restart) {
		t.Errorf("a smaller disk: %v", err)
	}
	_, err := v.grow(&m, 0, 1<<30)
	if err == nil || !strings.Contains(err.Error(), "change disks[root]: such a disk cannot grow") {
		t.Errorf("a disk that is in no volume: %v", err)
	}
	other := launch(t)
	other.onVolume(qemuargs.FileVolume, disk, 0)
	other.must(other.call(control.CommandStart, other.request, nil))
	if end := other.expectEnd(control.ReasonStartFailed,
		"exited with code 1"); !strings.Contains(end.Stderr, `Failed to get "write" lock`) {
		t.Errorf("a second VM on the disk ended with %+v", end)
	}
	if entries, err := os.ReadDir(volume); err != nil || len(entries) != 1 {
		t.Errorf("the volume holds %v (%v)", entries, err)
	}
	v.handsOver(started.QEMUPID, qemuargs.FileVolume, disk)
}

// TestBlockVolume: a device grows to the size it has, and is one VM's.
func TestBlockVolume(t *testing.T) {
	t.Parallel()
	v := launch(t)
	file := v.path("device")
	v.must(os.WriteFile(file, nil, 0o600), os.Truncate(file, 8<<20))
	out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		t.Fatalf("THIS MACHINE HAS NO LOOP DEVICES, and block volumes cannot be tested: losetup: %v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { exec.Command("losetup", "--detach", device).Run() })
	v.onVolume(qemuargs.BlockVolume, device, 0)
	started := v.boot()
	v.must(os.Truncate(file, 16<<20), exec.Command("losetup", "--set-capacity", device).Run())
	if got, err := v.grow(started.Machine, 1, 100<<20); err != nil || got != 16<<20 {
		t.Errorf("%d, %v, want the device's size", got, err)
	}
	other := launch(t)
	other.onVolume(qemuargs.BlockVolume, device, 0)
	other.must(other.call(control.CommandStart, other.request, nil))
	other.expectEnd(control.ReasonStartFailed, "is mounted, or another VM has it")
	v.handsOver(started.QEMUPID, qemuargs.BlockVolume, device)
}

// handsOver kills this VM's QEMU, and waits until a patient second VM gets the disk.
func (v *vm) handsOver(qemuPID int, mode qemuargs.VolumeMode, path string) {
	v.Helper()
	next := launch(v.T, func(c *Config) { c.DiskPatience = patience })
	next.onVolume(mode, path, 0)
	next.must(next.call(control.CommandStart, next.request, nil))
	next.log.Expect("waiting for a disk")
	v.must(syscall.Kill(qemuPID, syscall.SIGKILL))
	next.expectState(control.StatePreparing)
	next.expectState(control.StateRunning)
}

// TestOverlayOnVolume: two VMs may read one disk, and neither changes it.
func TestOverlayOnVolume(t *testing.T) {
	t.Parallel()
	shared, err := os.MkdirTemp("", "shared")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(shared) })
	var before []byte
	for range 2 {
		v := launch(t)
		disk := &v.request.Machine.Disks[0]
		if before == nil {
			before, err = os.ReadFile(disk.Image.Path)
			v.must(err, os.WriteFile(filepath.Join(shared, "disk.img"), before, 0o400))
		}
		disk.Image.Path, disk.Image.Volume = filepath.Join(shared, "disk.img"), qemuargs.FileVolume
		disk.Overlay = &qemuargs.Overlay{Path: filepath.Join(v.Overlays, "root.qcow2"), VirtualSize: 1 << 20}
		v.boot()
		console := attach(v)
		console.say("W")
		console.Expect("w")
	}
	if after, err := os.ReadFile(filepath.Join(shared, "disk.img")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the disk that is only read has changed (%v)", err)
	}
}

// TestVolumeSwapped: the disk that lies there when QEMU is started counts, not the one that lay there when it was
// looked at. It is opened as carefully.
func TestVolumeSwapped(t *testing.T) {
	t.Parallel()
	v := launch(t)
	volume, secret := v.path("volume"), v.path("secret")
	v.must(os.Mkdir(volume, 0o700), os.WriteFile(secret, make([]byte, 4096), 0o600),
		os.Symlink(secret, filepath.Join(volume, "disk.img")))
	v.onVolume(qemuargs.FileVolume, filepath.Join(volume, "disk.img"), 8<<20)
	v.must(v.call(control.CommandStart, v.request, nil))
	v.expectEnd(control.ReasonStartFailed, "open disk data: disk image cannot be used: /disk.img is a symbolic link")
}

// TestInspectClaims: the launcher gives one answer for each claim, in order.
func TestInspectClaims(t *testing.T) {
	t.Parallel()
	v := launch(t, func(c *Config) {
		c.Claims, c.Blocks = filepath.Join(filepath.Dir(c.Overlays), "claims"), filepath.Join(filepath.Dir(c.Overlays), "dev")
	})
	v.must(os.MkdirAll(filepath.Join(v.Claims, "new"), 0o700), os.MkdirAll(filepath.Join(v.Claims, "fifo"), 0o700),
		unix.Mkfifo(filepath.Join(v.Claims, "fifo", "disk.img"), 0o600))
	var reply control.InspectReply
	v.must(v.call(control.CommandInspect,
		control.InspectRequest{Claims: []control.Claim{{Volume: "fifo"}, {Volume: "new"}, {Volume: "none", Block: true},
			{Volume: "../../etc"}}}, &reply))
	if c := reply.Claims; len(c) != 4 || !strings.Contains(c[0].Error, "FIFO") || !c[1].Missing || c[1].Error != "" ||
		c[1].Free <= 0 || c[2].Error == "" || c[3].Error == "" {
		t.Errorf("%+v", c)
	}
}
