package launcher

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/podlog"
	"github.com/kubeqemu/kubeqemu/launcher/process/processtest"
)

// fakes are programs that do what real ones cannot be made to do. The test's
// binary plays them when it is called by their names.
var fakes = processtest.Fakes{
	"qemu-silent":        func() { qemu(func(*fakeMonitor) { processtest.Hang() }) },
	"qemu-mute":          func() { qemu(func(m *fakeMonitor) { m.greet(); processtest.Hang() }) },
	"qemu-no-cont":       func() { qemu(func(m *fakeMonitor) { m.handshake(); processtest.Hang() }) },
	"qemu-babbling":      func() { qemu(func(m *fakeMonitor) { m.say("Segmentation fault"); processtest.Hang() }) },
	"qemu-closing":       func() { qemu(func(m *fakeMonitor) { m.conn.Close(); processtest.Hang() }) },
	"qemu-ran-closes":    func() { qemu(func(m *fakeMonitor) { m.run(); m.conn.Close(); processtest.Hang() }) },
	"qemu-ran-garbage":   func() { qemu(func(m *fakeMonitor) { m.run(); m.say("\xff\x00 no JSON"); processtest.Hang() }) },
	"qemu-ran-endless":   func() { qemu((*fakeMonitor).endless) },
	"qemu-chatty":        func() { qemu((*fakeMonitor).chat) },
	"qemu-failing":       func() { qemu(func(m *fakeMonitor) { fail(2500, 3) }) },
	"qemu-crashing":      func() { qemu(func(m *fakeMonitor) { m.run(); fail(2500, 3) }) },
	"qemu-leaving":       func() { qemu(func(m *fakeMonitor) { m.run(); m.conn.Close(); os.Exit(0) }) },
	"qemu-received":      func() { qemu((*fakeMonitor).receive) },
	"qemu-pausing":       func() { qemu((*fakeMonitor).pause) },
	"qemu-panicking":     func() { qemu((*fakeMonitor).panic) },
	"qemu-not-again":     func() { qemu((*fakeMonitor).notAgain) },
	"qemu-off-early":     func() { qemu((*fakeMonitor).offEarly) },
	"qemu-off-late":      func() { qemu((*fakeMonitor).offLate) },
	"qemu-no-version":    func() { fmt.Println("hello") },
	"qemu-version-hangs": processtest.Hang,
}

// qemu answers -version. Without -version it plays on the monitor.
func qemu(play func(*fakeMonitor)) {
	if slices.Contains(os.Args, "-version") {
		fmt.Println("QEMU emulator version 99.1 (fake)")
		return
	}
	file := os.NewFile(monitorFile(), "qmp")
	conn, err := net.FileConn(file)
	if err != nil {
		panic(err)
	}
	file.Close()
	play(&fakeMonitor{conn: conn, commands: bufio.NewScanner(conn)})
}

// monitorFile returns the descriptor of the monitor, as the arguments have it. The UEFI variables that are in a volume
// come before it.
func monitorFile() (file uintptr) {
	for _, arg := range os.Args {
		if _, err := fmt.Sscanf(arg, "socket,id=qmp,fd=%d", &file); err == nil {
			return file
		}
	}
	panic("no argument has the monitor's descriptor")
}

func fail(bytes, code int) {
	fmt.Fprint(os.Stderr, strings.Repeat("?", bytes), "qemu: out of luck\n")
	os.Exit(code)
}

// fakeMonitor is the fake's end of QMP.
type fakeMonitor struct {
	conn     net.Conn
	commands *bufio.Scanner
}

func (m *fakeMonitor) say(line string) { fmt.Fprintf(m.conn, "%s\r\n", line) }

func (m *fakeMonitor) greet() {
	m.say(`{"QMP": {"version": {"qemu": {"micro": 0, "minor": 1, "major": 99}, "package": ""}, "capabilities": []}}`)
}

// reads reports whether the command just read is this one.
func (m *fakeMonitor) reads(command string) bool {
	return strings.Contains(m.commands.Text(), `"`+command+`"`)
}

// answer answers the command just read.
func (m *fakeMonitor) answer(with string) {
	_, id, _ := strings.Cut(m.commands.Text(), `"id":`)
	m.say(`{` + with + `, "id": ` + id[:strings.IndexAny(id, ",}")] + `}`)
}

// next reads a command and answers it, if it is one that is answered. The
// run state may be asked for at any time.
func (m *fakeMonitor) next(command string) {
	for m.commands.Scan() {
		switch {
		case m.reads(command):
			m.answer(`"return": {}`)
			return
		case m.reads("query-status"):
			m.answer(`"return": {"status": "internal-error", "running": false}`)
		default:
			fail(0, 99)
		}
	}
	fail(0, 99)
}

func (m *fakeMonitor) handshake() { m.greet(); m.next("qmp_capabilities") }

func (m *fakeMonitor) event(name, data string) {
	m.say(`{"timestamp": {"seconds": 1, "microseconds": 0}, "event": "` + name + `", "data": ` + data + `}`)
}

func (m *fakeMonitor) run() { m.handshake(); m.next("cont"); m.event("RESUME", "{}") }

// receive receives a guest at once. It reads the word to let the guest run, and does not answer it.
func (m *fakeMonitor) receive() {
	m.handshake()
	told := false
	for m.commands.Scan() {
		switch {
		case m.reads("cont") && told:
			fail(0, 99)
		case m.reads("cont"):
			told = true
		case m.reads("query-migrate"):
			m.answer(`"return": {"status": "completed"}`)
		default:
			m.answer(`"return": {}`)
		}
	}
}

// endless sends a line of 100 MB.
func (m *fakeMonitor) endless() {
	m.run()
	fmt.Fprint(m.conn, `{"return": "`)
	for range 100 {
		if _, err := m.conn.Write(make([]byte, 1<<20)); err != nil {
			break
		}
	}
	processtest.Hang()
}

// chat floods stderr, and then powers off.
func (m *fakeMonitor) chat() {
	m.run()
	for range 10 << 10 {
		fmt.Fprintln(os.Stderr, strings.Repeat("w", 1023))
	}
	m.event("SHUTDOWN", `{"guest": true, "reason": "guest-shutdown"}`)
}

// pause stops as for an I/O error, resumes, and stops again for good.
func (m *fakeMonitor) pause() {
	m.run()
	m.event("BLOCK_IO_ERROR",
		`{"device": "", "node-name": "disk-root", "operation": "write", "action": "report", "reason": "not this one"}`)
	m.event("BLOCK_IO_ERROR",
		`{"device": "", "node-name": "disk-root", "operation": "read", "action": "stop", "reason": "Input/output error"}`)
	m.event("STOP", "{}")
	m.event("RESUME", "{}")
	m.event("STOP", "{}")
	m.next("system_powerdown")
	m.next("quit")
	m.event("SHUTDOWN", `{"guest": false, "reason": "host-qmp-quit"}`)
}

// notAgain powers off to be started again, and cannot be.
func (m *fakeMonitor) notAgain() {
	m.run()
	m.next("set-action")
	m.next("system_powerdown")
	m.event("SHUTDOWN", `{"guest": true, "reason": "guest-shutdown"}`)
	m.event("STOP", "{}")
	for m.commands.Scan() {
		if m.reads("quit") {
			m.answer(`"return": {}`)
			return
		}
		m.answer(`"error": {"class": "GenericError", "desc": "no more"}`)
	}
}

// offLate powers off when its reboot is given up, and before QEMU hears of that.
func (m *fakeMonitor) offLate() {
	m.run()
	m.next("set-action")
	m.next("system_powerdown")
	for m.commands.Scan() {
		switch {
		case m.reads("set-action"):
			m.event("SHUTDOWN", `{"guest": true, "reason": "guest-shutdown"}`)
			m.event("STOP", "{}")
		case m.reads("quit"):
			m.answer(`"return": {}`)
			m.event("SHUTDOWN", `{"guest": false, "reason": "host-qmp-quit"}`)
			return
		}
		m.answer(`"return": {}`)
	}
}

// offEarly powers off before it hears that it is to be kept.
func (m *fakeMonitor) offEarly() {
	m.run()
	m.commands.Scan()
	m.event("SHUTDOWN", `{"guest": true, "reason": "guest-shutdown"}`)
}

func (m *fakeMonitor) panic() {
	m.run()
	m.event("GUEST_PANICKED", `{"action": "shutdown"}`)
	m.event("SHUTDOWN", `{"guest": true, "reason": "guest-panic"}`)
}

func withQEMU(t *testing.T, name string) func(*Config) {
	path := fakes.Path(t, name)
	return func(c *Config) { c.QEMU = path }
}

// faultyQEMU is a fake, and how the launcher ends with it.
type faultyQEMU struct {
	name    string
	bound   time.Duration // and no more than tooLate on a loaded machine
	reason  control.Reason
	message string
	stderr  string
}

func (f faultyQEMU) run(t *testing.T) {
	t.Parallel()
	v := launch(t, withQEMU(t, f.name))
	if v.conn.Hello.QEMUVersion != "99.1" {
		t.Errorf("version %q", v.conn.Hello.QEMUVersion)
	}
	begin := time.Now()
	v.must(v.call(control.CommandStart, v.request, nil))
	end := v.expectEnd(f.reason, f.message)
	if took := time.Since(begin); took > f.bound+tooLate {
		t.Errorf("took %s, want %s at most and a little", took, f.bound)
	}
	if !strings.HasSuffix(end.Stderr, f.stderr) || len(end.Stderr) > 2048 || end.Succeeded() {
		t.Errorf("ended with %+v", end)
	}
}

// TestFaultyQEMU: whatever QEMU does, the launcher ends, and says how.
func TestFaultyQEMU(t *testing.T) {
	t.Parallel()
	for _, f := range []faultyQEMU{
		{"qemu-failing", 0, control.ReasonStartFailed, "exited with code 3 before the guest ran", "???qemu: out of luck\n"},
		{"qemu-crashing", 0, control.ReasonQEMUExited, "exited with code 3", "???qemu: out of luck\n"},
		{"qemu-leaving", 0, control.ReasonQEMUExited, "exited with code 0", ""},
		{"qemu-panicking", 0, control.ReasonGuestPanic, "panicked", ""},
		{"qemu-ran-garbage", life.QuitTime, control.ReasonQMPLost, "no JSON", ""},
	} {
		t.Run(f.name, f.run)
	}
}

func TestQEMUWithoutVersion(t *testing.T) {
	t.Parallel()
	v := prepareVM(t, withQEMU(t, "qemu-no-version"))
	v.run()
	v.expectEnd(control.ReasonStartFailed, `no version in "hello`)
}

// TestPause: the state follows the guest's CPUs, and a VM that is paused ends
// at the end of its grace period.
func TestPause(t *testing.T) {
	t.Parallel()
	v := launch(t, withQEMU(t, "qemu-pausing"))
	v.request.GraceSeconds = 1
	started := v.start()
	failed := v.expectState(control.StatePaused).Pause
	if want := (control.Pause{Status: control.PausedIOError, Disk: "root", Operation: "read",
		Error: "Input/output error"}); failed == nil || *failed != want {
		t.Errorf("paused for %+v, want %+v", failed, want)
	}
	if running := v.expectState(control.StateRunning); running.Pause != nil {
		t.Errorf("running, but paused for %+v", running.Pause)
	}
	paused := v.expectState(control.StatePaused)
	if !paused.StartedAt.Equal(*started.StartedAt) || paused.Pause == nil || paused.Pause.Status != control.PausedByUser {
		t.Errorf("started at %v, paused it says %v and %+v", started.StartedAt, paused.StartedAt, paused.Pause)
	}
	// QEMU is asked why; it is not that somebody wanted it.
	if paused = v.expectState(control.StatePaused); paused.Pause == nil || paused.Pause.Status != "internal-error" {
		t.Errorf("paused for %+v", paused.Pause)
	}
	v.signals <- syscall.SIGTERM
	v.expectState(control.StateShuttingDown)
	v.expectState(control.StateExited)
	v.expectEnd(control.ReasonGracePeriodOver, "")
}

// TestStderrIsBounded: what QEMU complains of fills no disk.
func TestStderrIsBounded(t *testing.T) {
	t.Parallel()
	v := launch(t, withQEMU(t, "qemu-chatty"))
	begin := time.Now()
	v.start()
	end := v.expectEnd(control.ReasonGuestShutdown, "")
	most := podlog.MessageBurst + int(time.Since(begin).Seconds()+1)*podlog.MessageBytesPerSecond
	if info, err := v.Stderr.Stat(); err != nil || info.Size() < podlog.MessageBurst/2 || info.Size() > int64(most) {
		t.Errorf("stderr in the pod's log has %d bytes, want at most %d (%v)", info.Size(), most, err)
	}
	if !strings.Contains(v.log.String(), "left out messages of QEMU") {
		t.Error("nothing says that some was left out")
	}
	if !strings.HasSuffix(end.Stderr, "wwww\n") {
		t.Errorf("the last words are %.100q", end.Stderr)
	}
}
