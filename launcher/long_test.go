//go:build long

package launcher

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/serial"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestSilentQEMUIsSaidToBeSilent: a QEMU that does not answer is said to be silent for as long as it does not, and
// nothing else is done about it.
func TestSilentQEMUIsSaidToBeSilent(t *testing.T) {
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
	if took := time.Since(begin); took < life.PatienceTime-time.Second || took > life.PatienceTime+tooLate {
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
	if took := time.Since(begin); took > tooLate {
		t.Errorf("found to answer again after %s", took)
	}
	console := attach(v)
	console.say("x")
	console.Expect("x")
}

// TestUnreadConsoleAndLogHoldUpNobody: neither a console nor a log that is not read holds up the guest.
func TestUnreadConsoleAndLogHoldUpNobody(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	v := launch(t, func(c *Config) { c.Stdout = w })
	v.start()
	console := dial(v)
	var got []byte
	for chunk := make([]byte, 4096); !strings.Contains(string(got), banner); {
		console.SetReadDeadline(time.Now().Add(patience))
		n, err := console.Read(chunk)
		v.must(err)
		got = append(got, chunk[:n]...)
	}
	// Half a MiB, and then it powers off.
	_, err = console.Write([]byte("G"))
	v.must(err)
	v.expectEnd(control.ReasonGuestShutdown, "")
}

// TestGuestThatFloodsFillsNoLog: a guest that writes without end fills no log, and is not stopped.
func TestGuestThatFloodsFillsNoLog(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.boot()
	console := attach(v)
	console.say("F")
	begin := time.Now()
	console.WaitFor("1.5 MiB of output", func(data []byte) bool { return len(data) > 3<<19 })
	most := serial.LogBurst + int(time.Since(begin).Seconds()+1)*serial.LogBytesPerSecond
	if n := len(v.stdout.String()); n < serial.LogBurst/2 || n > most {
		t.Errorf("logged %d bytes, want at most %d", n, most)
	}
	if state := receiveState(v); state.State != control.StateRunning {
		t.Errorf("state %s", state.State)
	}
}

// TestStorageFullForAWhile: the guest goes on by itself once there is room, and
// does not seem to run before.
func TestStorageFullForAWhile(t *testing.T) {
	t.Parallel()
	v := launch(t)
	full := v.path("full")
	v.must(os.Mkdir(full, 0o700), unix.Mount("none", full, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { unix.Unmount(full, unix.MNT_DETACH) })
	v.request.Machine.Disks[0].Overlay = &qemuargs.Overlay{Path: full + "/root.qcow2", VirtualSize: 1 << 20}
	v.boot()
	filler, err := os.Create(full + "/filler")
	v.must(err)
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	filler.Close()
	console := attach(v)
	console.say("W")
	v.expectState(control.StatePaused)
	// One attempt in vain is not seen from outside.
	select {
	case state := <-v.conn.States:
		t.Fatalf("state %+v while the storage is full", state)
	case <-time.After(life.FirstRetry + life.SettleTime + 2*time.Second):
	}
	if !strings.Contains(v.log.String(), "try again what failed") {
		t.Error("nothing was tried again")
	}
	v.must(os.Remove(full + "/filler"))
	if running := v.expectState(control.StateRunning); running.Pause != nil {
		t.Errorf("running, but paused for %+v", running.Pause)
	}
	console.Expect("w")
	console.say("P")
	v.expectEnd(control.ReasonGuestShutdown, "")
}

// TestSlowlyFaultyQEMU: a QEMU that says nothing, or nonsense, does not hold up the launcher for ever.
func TestSlowlyFaultyQEMU(t *testing.T) {
	t.Parallel()
	for _, f := range []faultyQEMU{
		{"qemu-silent", handshakeTimeout, control.ReasonStartFailed, "wait for QMP greeting: ", ""},
		{"qemu-mute", handshakeTimeout, control.ReasonStartFailed, "qmp_capabilities", ""},
		{"qemu-no-cont", handshakeTimeout, control.ReasonStartFailed, `"cont"`, ""},
		{"qemu-babbling", life.QuitTime, control.ReasonStartFailed, "could not be driven", ""},
		{"qemu-closing", life.QuitTime, control.ReasonStartFailed, "monitor connection closed", ""},
		{"qemu-ran-closes", life.QuitTime, control.ReasonQMPLost, "monitor connection closed", ""},
		{"qemu-ran-endless", life.QuitTime, control.ReasonQMPLost, "longer than", ""},
	} {
		t.Run(f.name, f.run)
	}
}
