//go:build long

package launcher

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"net"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestGuestPowersOff(t *testing.T) {
	t.Parallel()
	v := launch(t)
	started := v.boot()
	attach(v).say("P")
	end := v.expectEnd(control.ReasonGuestShutdown, "")
	if !end.Succeeded() || end.ExitCode != 0 || end.Signal != "" {
		t.Errorf("ended with %+v", end)
	}
	v.qemuGone(started)
	exited := v.expectState(control.StateExited)
	exited.State = control.StateRunning
	sameState(t, exited, started)
}

// TestGuestResets: a reset is no end.
func TestGuestResets(t *testing.T) {
	t.Parallel()
	v := launch(t)
	started := v.boot()
	console := attach(v)
	console.say("R")
	v.stdout.expect(banner)
	sameState(t, receiveState(v), started)
	console.say("P")
	v.expectEnd(control.ReasonGuestShutdown, "")
}

// TestPowerButton: SIGTERM and the handler's command do the same.
func TestPowerButton(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(*vm){
		"signal":  func(v *vm) { v.signals <- syscall.SIGTERM },
		"command": func(v *vm) { v.must(v.call(control.CommandShutdown, nil, nil)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := launch(t)
			v.boot()
			console := attach(v)
			console.say("B")
			console.expect("b")
			ask(v)
			v.expectState(control.StateShuttingDown)
			v.expectState(control.StateExited)
			if end := v.expectEnd(control.ReasonShutdown, "power button"); !end.Succeeded() {
				t.Errorf("ended with %+v", end)
			}
		})
	}
}

// TestPowerButtonAgain: a guest that is not ready for the first press is for a
// later one.
func TestPowerButtonAgain(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.boot()
	console := attach(v)
	begin := time.Now()
	v.signals <- syscall.SIGTERM
	v.expectState(control.StateShuttingDown)
	console.say("x")
	console.expect("x") // it lives on
	console.say("B")
	v.expectEnd(control.ReasonShutdown, "power button")
	if took := time.Since(begin); took < life.PressInterval {
		t.Errorf("took %s, less than from one press to the next", took)
	}
}

// TestTinyGuest: a Linux powers off at the power button.
func TestTinyGuest(t *testing.T) {
	t.Parallel()
	v := launch(t)
	disk := &v.request.Machine.Disks[0]
	disk.Image = qemuargs.Image{Path: v.path("tiny.qcow2"), Format: qemuargs.QCOW2}
	extractDisk(t, "../_output/images/tiny-virtio-container-disk.tar", disk.Image.Path)
	disk.Overlay = &qemuargs.Overlay{Path: v.path("root.qcow2"), VirtualSize: 64 << 20}
	v.request.Machine.MemoryBytes = 128 << 20
	v.start()
	v.stdout.expect("tiny: up")
	console := attach(v)
	console.say("\n")
	console.expect("tiny# ")
	console.say("echo $((6*7))\n")
	console.expect("42")
	v.signals <- syscall.SIGTERM
	v.stdout.expect("tiny: ACPI power button, shutting down")
	v.expectEnd(control.ReasonShutdown, "power button")
	if stderr, err := os.ReadFile(v.path("stderr")); err != nil || len(stderr) > 0 {
		t.Errorf("QEMU complained: %s (%v)", stderr, err)
	}
}

// extractDisk writes the file in the folder /disk of a container image, which
// is a tar file of compressed layers.
func extractDisk(t *testing.T, image, to string) {
	t.Helper()
	f, err := os.Open(image)
	if errors.Is(err, os.ErrNotExist) {
		t.Fatalf("%v: run make images", err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for layers := tar.NewReader(f); ; {
		header, err := layers.Next()
		if err != nil {
			t.Fatalf("%s has no file in /disk: %v", image, err)
		}
		if !strings.HasSuffix(header.Name, ".tar.gz") {
			continue
		}
		layer, err := gzip.NewReader(layers)
		if err != nil {
			t.Fatal(err)
		}
		if extractFrom(t, tar.NewReader(layer), to) {
			return
		}
	}
}

func extractFrom(t *testing.T, layer *tar.Reader, to string) bool {
	t.Helper()
	for {
		header, err := layer.Next()
		if err == io.EOF {
			return false
		} else if err != nil {
			t.Fatal(err)
		}
		if path.Dir(path.Clean("/"+header.Name)) != "/disk" || header.Typeflag != tar.TypeReg {
			continue
		}
		f, err := os.Create(to)
		if err == nil {
			_, err = io.Copy(f, layer)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	}
}

// TestGracePeriod: a guest that ignores the power button has the whole of it,
// and no more.
func TestGracePeriod(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.request.GraceSeconds = 2
	started := v.boot()
	begin := time.Now()
	v.signals <- syscall.SIGTERM
	v.signals <- syscall.SIGTERM // asking again changes nothing
	v.must(v.call(control.CommandShutdown, nil, nil))
	end := v.expectEnd(control.ReasonGracePeriodOver, "within 2 seconds")
	// It follows quit at once, well before it would be killed.
	if took := time.Since(begin); took < 2*time.Second || took >= 2*time.Second+life.QuitTime {
		t.Errorf("took %s", took)
	}
	if end.Signal != "" || end.Succeeded() {
		t.Errorf("ended with %+v", end)
	}
	v.qemuGone(started)
}

func TestNoGracePeriod(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		change  func(*control.StartRequest)
		reason  control.Reason
		message string
	}{
		{"grace 0", func(r *control.StartRequest) { r.GraceSeconds = 0 }, control.ReasonGracePeriodOver, "within 0 seconds"},
		{"no ACPI", func(r *control.StartRequest) { r.Machine.NoACPI, r.GraceSeconds = true, 3600 }, control.ReasonShutdown, "no ACPI"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := launch(t)
			tt.change(&v.request)
			v.boot()
			begin := time.Now()
			v.signals <- syscall.SIGTERM
			v.expectEnd(tt.reason, tt.message)
			if took := time.Since(begin); took >= life.QuitTime {
				t.Errorf("took %s: QEMU was killed, not told to quit", took)
			}
		})
	}
}

// TestEndBeforeTheGuestRuns: asked to end at any point before the guest runs,
// the launcher does, soon, and says that there was no VM.
func TestEndBeforeTheGuestRuns(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		configure func(t *testing.T, c *Config)
		request   func(v *vm)
		start     bool
	}{
		"waiting": {func(*testing.T, *Config) {}, nil, false},
		"preparing": {func(t *testing.T, c *Config) { c.QEMUImg = fake(t, "qemu-img-hangs") }, func(v *vm) {
			v.request.Machine.Disks[0].Overlay = &qemuargs.Overlay{Path: v.path("overlay"), VirtualSize: 1 << 20}
		}, true},
		"before the greeting": {func(t *testing.T, c *Config) { c.QEMU = fake(t, "qemu-silent") }, nil, true},
		"before cont":         {func(t *testing.T, c *Config) { c.QEMU = fake(t, "qemu-no-cont") }, nil, true},
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
			if took := time.Since(begin); took > 9*time.Second {
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

// TestEndWhileQEMUIsAskedForItsVersion: a node may take long to read QEMU from
// its disk, and a pod may be deleted meanwhile.
func TestEndWhileQEMUIsAskedForItsVersion(t *testing.T) {
	t.Parallel()
	v := prepareVM(t, withQEMU(t, "qemu-version-hangs"))
	v.signals <- syscall.SIGTERM
	v.run()
	begin := time.Now()
	v.expectEnd(control.ReasonNeverStarted, "asked to end")
	if took := time.Since(begin); took > 9*time.Second {
		t.Errorf("took %s", took)
	}
}

// TestStartRacesEnd: what is ending is not started.
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

func TestQEMUKilled(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]syscall.Signal{"KILL": syscall.SIGKILL, "SEGV": syscall.SIGSEGV} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := launch(t)
			started := v.boot()
			v.must(syscall.Kill(started.QEMUPID, s))
			end := v.expectEnd(control.ReasonQEMUExited, "was killed by signal "+itoa(int(s)))
			if end.Signal != s.String() || end.Succeeded() {
				t.Errorf("ended with %+v", end)
			}
			v.expectState(control.StateExited)
		})
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

// TestStartPaused: the guest's CPUs do not run, and that it is ended so is no
// failure to start.
func TestStartPaused(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.request.Paused, v.request.GraceSeconds = true, 0
	v.must(v.call(control.CommandStart, v.request, nil))
	v.expectState(control.StatePreparing)
	if state := v.expectState(control.StatePaused); state.StartedAt != nil || state.Pause == nil || state.Pause.Status != control.PausedByUser {
		t.Errorf("state %+v, want one that was paused by the user and never ran", state)
	}
	v.must(v.call(control.CommandShutdown, nil, nil))
	v.expectEnd(control.ReasonGracePeriodOver, "did not power off")
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

// TestStoppedQEMU: a QEMU that does not react is killed.
func TestStoppedQEMU(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.request.GraceSeconds = 1
	started := v.boot()
	v.must(syscall.Kill(started.QEMUPID, syscall.SIGSTOP))
	v.expectKilled(started, time.Second+life.QuitTime)
}

// TestSilentQEMU: a QEMU that does not answer is said to be silent, no more,
// and no longer than that.
func TestSilentQEMU(t *testing.T) {
	t.Parallel()
	v := launch(t)
	started := v.boot()
	v.must(syscall.Kill(started.QEMUPID, syscall.SIGSTOP))
	if state := receiveState(v); state.QEMUSilent {
		t.Error("silent before it was asked")
	}
	begin := time.Now()
	if silent := v.expectState(control.StateRunning); !silent.QEMUSilent {
		t.Errorf("state %+v", silent)
	}
	if took := time.Since(begin); took < life.PatienceTime-time.Second || took > life.PatienceTime+5*time.Second {
		t.Errorf("said to be silent after %s", took)
	}
	if state := receiveState(v); !state.QEMUSilent { // asked again while it is
		t.Error("not silent any more")
	}
	begin = time.Now()
	v.must(syscall.Kill(started.QEMUPID, syscall.SIGCONT))
	if again := v.expectState(control.StateRunning); again.QEMUSilent {
		t.Errorf("state %+v", again)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("found to answer again after %s", took)
	}
	console := attach(v)
	console.say("x")
	console.expect("x")
}

// TestUndyingQEMU: nor does one help that reads commands and obeys none.
func TestUndyingQEMU(t *testing.T) {
	t.Parallel()
	v := launch(t, withQEMU(t, "qemu-undying"))
	v.request.GraceSeconds = 1
	v.expectKilled(v.start(), time.Second+life.QuitTime)
}

func (v *vm) expectKilled(started control.StateReport, after time.Duration) {
	v.Helper()
	begin := time.Now()
	v.signals <- syscall.SIGTERM
	end := v.expectEnd(control.ReasonGracePeriodOver, "")
	if took := time.Since(begin); took < after || took > after+5*time.Second {
		v.Errorf("took %s, want %s", took, after)
	}
	if end.Signal != syscall.SIGKILL.String() {
		v.Errorf("ended with %+v", end)
	}
	v.qemuGone(started)
}

func TestContextEnds(t *testing.T) {
	t.Parallel()
	v := launch(t)
	started := v.boot()
	v.cancel()
	v.expectEnd(control.ReasonQEMUExited, "signal 9")
	v.qemuGone(started)
}
