package launcher

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// onVolume gives the VM a second disk, in a volume of its own.
func (v *vm) onVolume(mode qemuargs.VolumeMode, path string, create int64) {
	v.request.Machine.Disks = append(v.request.Machine.Disks,
		qemuargs.Disk{Name: "data", Driver: qemuargs.VirtioBlk, PCI: &qemuargs.PCIAddress{Bus: "pci.2"},
			Image: qemuargs.Image{Path: path, Format: qemuargs.Raw, Volume: mode, Create: create}})
}

// grow makes the second disk larger, and returns the job's result.
func (v *vm) grow(size int64) (control.Job, error) {
	v.Helper()
	var reply control.JobReply
	if err := v.call(control.CommandGrowDisk, control.GrowDiskRequest{Disk: "data", Size: size}, &reply); err != nil {
		return control.Job{}, err
	}
	return v.jobEnds(reply.ID), nil
}

// jobEnds waits for a job's result.
func (v *vm) jobEnds(id uint64) control.Job {
	v.Helper()
	for {
		for _, j := range testkit.Receive(v.T, v.conn.States, "a job's result").Jobs {
			if j.ID == id && j.Finished() {
				return j
			}
		}
	}
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
	if _, err := v.grow(1 << 20); err == nil {
		t.Error("a disk has grown before QEMU was started")
	}
	started := v.boot()
	for _, tt := range []struct{ ask, want int64 }{{4 << 20, 8 << 20}, {8 << 20, 8 << 20}, {16 << 20, 16 << 20},
		{8 << 20, 16 << 20}, {1 << 60, 0}} {
		got, err := v.grow(tt.ask)
		stat, statErr := os.Stat(disk)
		v.must(statErr)
		if tt.want == 0 {
			// As much as the file system has room for.
			tt.want = stat.Size()
			if tt.want < 16<<20 || tt.want > 1<<50 {
				t.Errorf("asked for all, it has %d bytes", tt.want)
			}
		}
		if err != nil || got.State != control.JobDone || got.Done != tt.want || got.Total != tt.ask ||
			stat.Size() != tt.want {
			t.Errorf("asked for %d bytes: %+v, %v, and the file has %d; want %d", tt.ask, got, err, stat.Size(), tt.want)
		}
	}
	var reply control.JobReply
	for _, name := range []string{"root", "none"} {
		if err := v.call(control.CommandGrowDisk, control.GrowDiskRequest{Disk: name, Size: 1 << 30}, &reply); err == nil {
			t.Errorf("disk %s has grown", name)
		}
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
	if got, err := v.grow(100 << 20); err != nil || got.Done != 16<<20 {
		t.Errorf("%+v, %v, want the device's size", got, err)
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
