package launcher

import (
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func itoa(n int) string { return strconv.Itoa(n) }

// TestResetOfTheGuestIsNoEnd: a guest that resets has not ended.
func TestResetOfTheGuestIsNoEnd(t *testing.T) {
	t.Parallel()
	v := launch(t)
	started := v.boot()
	console := attach(v)
	console.say("R")
	v.stdout.Expect(banner)
	sameState(t, receiveState(v), started)
	console.say("P")
	v.expectEnd(control.ReasonGuestShutdown, "")
}

// TestRunningGuestIsAskedToEnd: a guest that runs is asked to end, and does or is ended. Its QEMU is gone then.
func TestRunningGuestIsAskedToEnd(t *testing.T) {
	t.Parallel()
	terminate := func(v *vm, _ int) { v.signals <- syscall.SIGTERM }
	for name, tt := range map[string]struct {
		grace   int64
		obeys   bool // obeys the power button
		noACPI  bool
		act     func(v *vm, qemu int)
		reason  control.Reason
		message string
	}{
		// Who ends by itself does so before a grace period is over that is longer than the test.
		"power button": {3600, true, false, terminate, control.ReasonShutdown, ""},
		"asked by the handler": {3600, true, false, func(v *vm, _ int) { v.must(v.call(control.CommandShutdown, nil, nil)) },
			control.ReasonShutdown, ""},
		"grace period over": {1, false, false, terminate, control.ReasonGracePeriodOver, "within 1 seconds"},
		"no grace":          {0, false, false, terminate, control.ReasonGracePeriodOver, ""},
		"no ACPI":           {3600, false, true, terminate, control.ReasonShutdown, ""},
		"QEMU hangs": {1, true, false,
			func(v *vm, qemu int) { v.must(syscall.Kill(qemu, syscall.SIGSTOP)); terminate(v, qemu) },
			control.ReasonGracePeriodOver, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := launch(t)
			v.request.GraceSeconds, v.request.Machine.NoACPI = tt.grace, tt.noACPI
			running := v.boot()
			if tt.obeys {
				obey(v)
			}
			begin := time.Now()
			tt.act(v, running.QEMUPID)
			v.expectState(control.StateShuttingDown)
			end := v.expectEnd(tt.reason, tt.message)
			grace, took := time.Duration(tt.grace)*time.Second, time.Since(begin)
			if tt.reason == control.ReasonGracePeriodOver && (took < grace || took > grace+life.QuitTime+tooLate) {
				t.Errorf("took %s, grace %s", took, grace)
			}
			if end.Succeeded() != (tt.reason == control.ReasonShutdown) {
				t.Errorf("ended with %+v", end)
			}
			v.qemuGone(running)
		})
	}
}

// obey makes the guest obey the power button.
func obey(v *vm) {
	v.Helper()
	attach(v).say("B")
	v.stdout.Expect("b")
}

// TestEndBeforeTheGuestRuns: a launcher that is asked to end at any point before the guest runs ends soon, and says
// that there was no VM.
func TestEndBeforeTheGuestRuns(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		configure func(t *testing.T, c *Config)
		request   func(v *vm)
		start     bool
	}{
		"waiting":             {func(*testing.T, *Config) {}, nil, false},
		"preparing":           {func(_ *testing.T, c *Config) { c.DiskPatience = patience }, (*vm).waitsForDisk, true},
		"before the greeting": {func(t *testing.T, c *Config) { c.QEMU = fakes.Path(t, "qemu-silent") }, nil, true},
		"before cont":         {func(t *testing.T, c *Config) { c.QEMU = fakes.Path(t, "qemu-no-cont") }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := launch(t, func(c *Config) { tt.configure(t, c) })
			if tt.request != nil {
				tt.request(v)
			}
			if tt.start {
				v.must(v.call(control.CommandStart, v.request, nil))
				v.expectState(control.StatePreparing)
			}
			begin := time.Now()
			v.signals <- syscall.SIGTERM
			end := v.expectEnd(control.ReasonNeverStarted, "asked to end")
			if took := time.Since(begin); took > tooLate {
				t.Errorf("took %s", took)
			}
			if end.Succeeded() {
				t.Errorf("ended with %+v", end)
			}
			if exited := v.expectState(control.StateExited); exited.QEMUPID != 0 {
				v.qemuGone(exited)
			}
		})
	}
}

// waitsForDisk gives the machine a disk that is locked as another QEMU locks it.
func (v *vm) waitsForDisk() {
	v.Helper()
	disk, err := os.OpenFile(v.path("disk.img"), os.O_RDWR|os.O_CREATE, 0o600)
	v.must(err)
	v.Cleanup(func() { disk.Close() })
	v.must(disk.Truncate(1<<20), unix.FcntlFlock(disk.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
	v.onVolume(qemuargs.FileVolume, disk.Name(), 0)
}

// TestEndWhileQEMUIsAskedForItsVersion: a node may take long to read QEMU from
// its disk, and a pod may be deleted meanwhile.
func TestEndWhileQEMUIsAskedForItsVersion(t *testing.T) {
	t.Parallel()
	v := prepareVM(t, withQEMU(t, "qemu-version-hangs"))
	v.signals <- syscall.SIGTERM
	v.run()
	begin := time.Now()
	v.expectEnd(control.ReasonNeverStarted, "asked to end")
	if took := time.Since(begin); took > tooLate {
		t.Errorf("took %s", took)
	}
}

// TestStartRacesEnd: a launcher that is ending does not start its VM.
func TestStartRacesEnd(t *testing.T) {
	t.Parallel()
	for range 5 {
		v := launch(t)
		go func() { v.signals <- syscall.SIGTERM }()
		err := v.call(control.CommandStart, v.request, nil)
		end := v.termination()
		if end.Reason != control.ReasonNeverStarted && end.Reason != control.ReasonGracePeriodOver {
			t.Errorf("ended with %+v, start: %v", end, err)
		}
	}
}

// TestKeptLauncher: a launcher that is kept lives on after QEMU failed, says how
// it did, and says it again when it is asked to end.
func TestKeptLauncher(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.request.KeepLauncher = true
	started := v.boot()
	v.must(syscall.Kill(started.QEMUPID, syscall.SIGKILL))
	state := v.expectState(control.StateExited)
	if !strings.Contains(state.Failure, "was killed by signal 9") {
		t.Errorf("state %+v, want how QEMU ended", state)
	}
	v.qemuGone(started)
	// A console that attaches now is hung up on, and holds up nothing.
	conn, err := net.Dial("unix", v.ConsoleSocket)
	v.must(err)
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(patience))
	if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a console after the end reads %d bytes, %v", n, err)
	}
	v.must(v.call(control.CommandQueryState, nil, &state))
	v.must(v.call(control.CommandShutdown, nil, nil))
	v.expectEnd(control.ReasonQEMUExited, "was killed by signal 9")
}

// TestStartPaused: the guest's CPUs do not run when the VM starts paused. That such a VM is ended is no failure to
// start, and waits for no guest to heed the power button.
func TestStartPaused(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.request.Paused, v.request.GraceSeconds = true, 3600
	v.must(v.call(control.CommandStart, v.request, nil))
	v.expectState(control.StatePreparing)
	if state := v.expectState(control.StatePaused); state.StartedAt != nil || state.Pause == nil ||
		state.Pause.Status != control.PausedByUser {
		t.Errorf("state %+v, want one that was paused by the user and never ran", state)
	}
	v.must(v.call(control.CommandShutdown, nil, nil))
	v.expectEnd(control.ReasonNeverStarted, "asked to end before the guest ran")
}

// TestQEMUTerminated: SIGTERM to QEMU alone, as a node that shuts down may
// send, is not the guest's doing. QEMU names the sender on stderr.
func TestQEMUTerminated(t *testing.T) {
	t.Parallel()
	v := launch(t)
	started := v.boot()
	v.must(syscall.Kill(started.QEMUPID, syscall.SIGTERM))
	end := v.expectEnd(control.ReasonQEMUExited, "host-signal")
	if !strings.Contains(end.Stderr, "terminating on signal 15") {
		t.Errorf("ended with %+v", end)
	}
}

func TestQEMUDiesWithTheContext(t *testing.T) {
	t.Parallel()
	v := launch(t)
	started := v.boot()
	v.cancel()
	v.expectEnd(control.ReasonQEMUExited, "signal 9")
	v.qemuGone(started)
}
