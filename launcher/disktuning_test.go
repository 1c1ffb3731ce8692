package launcher

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// onThreads makes threads of QEMU's own serve the disks, one thread for each disk.
func onThreads(m *qemuargs.Machine) {
	for i := range m.Disks {
		id := "iothread" + itoa(i+1)
		m.IOThreads = append(m.IOThreads, qemuargs.IOThread{ID: id})
		m.Disks[i].IOThread = id
	}
}

// TestDiskWithAnIOThreadGrows: a disk that a thread serves grows while the guest runs, and the guest writes on.
func TestDiskWithAnIOThreadGrows(t *testing.T) {
	t.Parallel()
	v := launch(t)
	volume := v.path("volume")
	v.must(os.Mkdir(volume, 0o700))
	v.onVolume(qemuargs.FileVolume, filepath.Join(volume, "disk.img"), 8<<20)
	onThreads(&v.request.Machine)
	v.request.Machine.Disks[0].WriteThrough = true
	v.request.Machine.Disks[1].Blocks = &qemuargs.BlockSizes{Logical: 4096, Physical: 8192}
	started := v.boot()
	if got, err := v.grow(started.Machine, 1, 16<<20); err != nil || got != 16<<20 {
		t.Errorf("grown to %d, %v", got, err)
	}
	v.answers("W", "w")
}

// TestMigrateIOThread: a disk that threads serve, at the source and at the target, is copied whole.
func TestMigrateIOThread(t *testing.T) {
	t.Parallel()
	m := &move{source: prepareVM(t)}
	onThreads(&m.source.request.Machine)
	m.source.run()
	m.source.conn = launchertest.Accept(t, m.source.handler)
	m.source.boot()
	m.configure = func(r *control.StartRequest) { onThreads(&r.Machine) }
	m.aim("root")
	m.source.answers("1W", "1w")
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.until(control.StateMoved)
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	sent, err := os.ReadFile(m.source.request.Machine.Disks[0].Image.Path)
	m.source.must(err)
	arrived, err := os.ReadFile(m.target.request.Machine.Disks[0].Image.Path)
	m.target.must(err)
	if !bytes.Equal(sent, arrived) || bytes.Equal(arrived[512:514], []byte{0, 0}) {
		t.Error("the disk differs")
	}
	m.target.answers("2W", "2w")
}

// TestErrorPoliciesOfAFullDisk: on a full disk a guest is told of the error, or of none, or is paused and goes on
// when there is room.
func TestErrorPoliciesOfAFullDisk(t *testing.T) {
	for _, test := range []struct {
		policy qemuargs.OnError
		says   string // the guest, of its write; empty if it is paused
	}{{qemuargs.Report, "x"}, {qemuargs.Ignore, "w"}, {qemuargs.StopIfFull, ""}, {qemuargs.Stop, ""}} {
		t.Run("policy "+string(test.policy), func(t *testing.T) {
			t.Parallel()
			v := launch(t)
			full := v.path("full")
			v.must(os.Mkdir(full, 0o700), unix.Mount("none", full, "tmpfs", 0, "size=260k"))
			t.Cleanup(func() { unix.Unmount(full, unix.MNT_DETACH) })
			disk := &v.request.Machine.Disks[0]
			disk.Overlay, disk.OnError = &qemuargs.Overlay{Path: full + "/root.qcow2", VirtualSize: 1 << 20}, test.policy
			v.boot()
			filler, err := os.Create(full + "/filler")
			v.must(err)
			for err == nil {
				_, err = filler.Write(make([]byte, 4096))
			}
			filler.Close()
			if test.says != "" {
				v.answers("W1", test.says+"1")
				return
			}
			attach(v).say("W1")
			want := control.Pause{Status: control.PausedIOError, Disk: "root", Operation: "write",
				Error: "No space left on device", NoSpace: true}
			if paused := v.expectState(control.StatePaused); paused.Pause == nil || *paused.Pause != want {
				t.Errorf("paused for %+v, want %+v", paused.Pause, want)
			}
			v.must(os.Remove(full+"/filler"), v.call(control.CommandUnpause, nil, nil))
			v.stdout.Expect("w1")
		})
	}
}

// TestSharedVolume: guests share a file, and a device, on which others would have to wait.
func TestSharedVolume(t *testing.T) {
	for _, mode := range []qemuargs.VolumeMode{qemuargs.FileVolume, qemuargs.BlockVolume} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "shared")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			path := filepath.Join(dir, "disk.img")
			if err := os.WriteFile(path, make([]byte, 8<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			if mode == qemuargs.BlockVolume {
				out, err := exec.Command("losetup", "--find", "--show", path).CombinedOutput()
				if err != nil {
					t.Fatalf("THIS MACHINE HAS NO LOOP DEVICES, and block volumes cannot be tested: losetup: %v: %s", err, out)
				}
				path = strings.TrimSpace(string(out))
				t.Cleanup(func() { exec.Command("losetup", "--detach", path).Run() })
			}
			for range 2 {
				v := launch(t)
				v.onVolume(mode, path, 0)
				v.request.Machine.Disks[1].Shared = true
				v.boot()
			}
			// A guest that only reads waits for none of the others.
			reader := launch(t, func(c *Config) { c.DiskPatience = patience })
			reader.onVolume(mode, path, 0)
			reader.request.Machine.Disks[1].Shared, reader.request.Machine.Disks[1].ReadOnly = true, true
			reader.boot()
			if log := reader.log.String(); strings.Contains(log, "waiting for a disk") {
				t.Errorf("a guest that only reads waited:\n%s", log)
			}
			alone := launch(t)
			alone.onVolume(mode, path, 0)
			alone.must(alone.call(control.CommandStart, alone.request, nil))
			if end := alone.expectEnd(control.ReasonStartFailed, "exited with code 1"); !strings.Contains(end.Stderr, "lock") {
				t.Errorf("a guest that shares nothing ended with %+v", end)
			}
		})
	}
}
