package launcher

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestSoftReboot: a guest without an agent is started anew by the power button,
// and its next power-off is one.
func TestSoftReboot(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.request.Machine.Agent = &qemuargs.Agent{PCI: qemuargs.PCIAddress{Bus: "pci.2"}}
	running := v.boot()
	for command, arguments := range map[string]any{
		control.CommandGuestInfo: nil, control.CommandUsers: nil, control.CommandFileSystems: nil,
		control.CommandFreeze: control.FreezeRequest{TimeoutSeconds: 1}, control.CommandUnfreeze: nil} {
		if err := v.call(command, arguments, nil); err == nil || !strings.Contains(err.Error(), "not connected") {
			t.Errorf("%s without an agent: %v", command, err)
		}
	}
	obey(v)
	v.must(v.call(control.CommandSoftReboot, nil, nil))
	v.stdout.Expect(banner)
	if state := receiveState(v); state.State != control.StateRunning || state.QEMUPID != running.QEMUPID {
		t.Errorf("after the reboot: %+v", state)
	}
	obey(v)
	v.signals <- syscall.SIGTERM
	v.expectEnd(control.ReasonShutdown, "")
}

// TestPauseWhileRebootIsAwaited: a guest that has not powered off yet is paused
// and goes on, and is stopped for an I/O error, as at any other time.
func TestPauseWhileRebootIsAwaited(t *testing.T) {
	t.Parallel()
	v := launch(t)
	full := v.path("full")
	v.must(os.Mkdir(full, 0o700), unix.Mount("none", full, "tmpfs", 0, "size=260k"))
	t.Cleanup(func() { unix.Unmount(full, unix.MNT_DETACH) })
	v.request.Machine.Disks[0].Overlay = &qemuargs.Overlay{Path: full + "/root.qcow2", VirtualSize: 1 << 20}
	v.boot()
	v.must(v.call(control.CommandSoftReboot, nil, nil)) // it does not heed the power button
	v.must(v.call(control.CommandPause, nil, nil))
	if p := v.expectState(control.StatePaused).Pause; p == nil || p.Status != control.PausedByUser {
		t.Errorf("paused for %+v", p)
	}
	v.must(v.call(control.CommandUnpause, nil, nil))
	v.expectState(control.StateRunning)
	filler, err := os.Create(full + "/filler")
	v.must(err)
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	filler.Close()
	attach(v).say("W")
	if p := v.expectState(control.StatePaused).Pause; p == nil || p.Status != control.PausedIOError {
		t.Errorf("paused for %+v", p)
	}
}

// TestFailedRebootHadNoGracePeriod: a guest that powered off to be started again, and could
// not be, has not had its grace period.
func TestFailedRebootHadNoGracePeriod(t *testing.T) {
	t.Parallel()
	v := launch(t, withQEMU(t, "qemu-not-again"))
	v.start()
	v.must(v.call(control.CommandSoftReboot, nil, nil))
	v.expectEnd(control.ReasonQMPLost, "no more")
	if exited := v.expectState(control.StateExited); exited.Pause != nil {
		t.Errorf("state %+v, want none of a pause", exited)
	}
}

// TestPowerOffBeforeARebootIsPrepared: a guest that powers off by itself before QEMU knows that
// it is to be kept has done so.
func TestPowerOffBeforeARebootIsPrepared(t *testing.T) {
	t.Parallel()
	v := launch(t, withQEMU(t, "qemu-off-early"))
	v.start()
	if err := v.call(control.CommandSoftReboot, nil, nil); err == nil {
		t.Error("a guest that is off was soft-rebooted")
	}
	v.expectEnd(control.ReasonGuestShutdown, "")
}

// TestPowerOffAfterARebootWasGivenUp: a guest that powers off when its reboot has just been
// given up is not kept, and has done so in time.
func TestPowerOffAfterARebootWasGivenUp(t *testing.T) {
	t.Parallel()
	v := launch(t, withQEMU(t, "qemu-off-late"))
	v.start()
	v.must(v.call(control.CommandSoftReboot, nil, nil))
	v.signals <- syscall.SIGTERM
	v.expectState(control.StateShuttingDown)
	v.expectEnd(control.ReasonShutdown, "powered off after the ACPI power button")
	if exited := v.expectState(control.StateExited); exited.Pause != nil {
		t.Errorf("state %+v, want none of a pause", exited)
	}
}
