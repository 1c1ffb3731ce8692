//go:build long

package launcher

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// fakes are programs that do what real ones cannot be made to do. The test's
// binary plays them when it is called by their names.
var fakes = map[string]func(){
	"qemu-silent":        func() { qemu(func(*fakeMonitor) { hang() }) },
	"qemu-mute":          func() { qemu(func(m *fakeMonitor) { m.greet(); hang() }) },
	"qemu-no-cont":       func() { qemu(func(m *fakeMonitor) { m.handshake(); hang() }) },
	"qemu-babbling":      func() { qemu(func(m *fakeMonitor) { m.say("Segmentation fault"); hang() }) },
	"qemu-closing":       func() { qemu(func(m *fakeMonitor) { m.conn.Close(); hang() }) },
	"qemu-ran-closes":    func() { qemu(func(m *fakeMonitor) { m.run(); m.conn.Close(); hang() }) },
	"qemu-undying":       func() { qemu(func(m *fakeMonitor) { m.run(); m.obeyNothing() }) },
	"qemu-failing":       func() { qemu(func(m *fakeMonitor) { fail(2500, 3) }) },
	"qemu-crashing":      func() { qemu(func(m *fakeMonitor) { m.run(); fail(2500, 3) }) },
	"qemu-leaving":       func() { qemu(func(m *fakeMonitor) { m.run(); m.conn.Close(); os.Exit(0) }) },
	"qemu-pausing":       func() { qemu((*fakeMonitor).pause) },
	"qemu-panicking":     func() { qemu((*fakeMonitor).panic) },
	"qemu-no-version":    func() { fmt.Println("hello") },
	"qemu-version-hangs": hang,
	"qemu-img-hangs":     hang,
}

// fake is the path of a program of fakes.
func fake(v *testing.T, name string) string {
	v.Helper()
	self, err := os.Executable()
	if err != nil || fakes[name] == nil {
		v.Fatalf("fake %s: %v", name, err)
	}
	path := filepath.Join(v.TempDir(), name)
	if err := os.Symlink(self, path); err != nil {
		v.Fatal(err)
	}
	return path
}

// qemu answers -version, and plays on the monitor, which is file 3, else.
func qemu(play func(*fakeMonitor)) {
	if slices.Contains(os.Args, "-version") {
		fmt.Println("QEMU emulator version 99.1 (fake)")
		return
	}
	file := os.NewFile(3, "qmp")
	conn, err := net.FileConn(file)
	if err != nil {
		panic(err)
	}
	file.Close()
	play(&fakeMonitor{conn: conn, commands: bufio.NewScanner(conn)})
}

// hang until killed; SIGTERM, as QEMU obeys it, is no way out.
func hang() {
	signal.Ignore(syscall.SIGTERM)
	<-time.After(5 * time.Minute) // should all else fail
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

// next reads a command and answers it, if it is one that is answered.
func (m *fakeMonitor) next(command string) {
	if !m.commands.Scan() || !strings.Contains(m.commands.Text(), `"`+command+`"`) {
		fail(0, 99)
	}
	_, id, _ := strings.Cut(m.commands.Text(), `"id":`)
	m.say(`{"return": {}, "id": ` + id[:strings.IndexAny(id, ",}")] + `}`)
}

func (m *fakeMonitor) handshake() { m.greet(); m.next("qmp_capabilities") }

func (m *fakeMonitor) event(name, data string) {
	m.say(`{"timestamp": {"seconds": 1, "microseconds": 0}, "event": "` + name + `", "data": ` + data + `}`)
}

func (m *fakeMonitor) run() { m.handshake(); m.next("cont"); m.event("RESUME", "{}") }

func (m *fakeMonitor) obeyNothing() {
	for m.commands.Scan() {
	}
	hang()
}

// pause stops as for an I/O error, resumes, and stops again for good.
func (m *fakeMonitor) pause() {
	m.run()
	m.event("STOP", "{}")
	m.event("RESUME", "{}")
	m.event("STOP", "{}")
	m.next("system_powerdown")
	m.next("quit")
	m.event("SHUTDOWN", `{"guest": false, "reason": "host-qmp-quit"}`)
}

func (m *fakeMonitor) panic() {
	m.run()
	m.event("GUEST_PANICKED", `{"action": "shutdown"}`)
	m.event("SHUTDOWN", `{"guest": true, "reason": "guest-panic"}`)
}

func withQEMU(t *testing.T, name string) func(*Config) {
	path := fake(t, name)
	return func(c *Config) { c.QEMU = path }
}

// TestFaultyQEMU: whatever QEMU does, the launcher ends, and says how.
func TestFaultyQEMU(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		bound   time.Duration // and 10 s more on a loaded machine
		reason  control.Reason
		message string
		stderr  string
	}{
		{"qemu-silent", 10 * time.Second, control.ReasonStartFailed, "wait for QMP greeting: ", ""},
		{"qemu-mute", 10 * time.Second, control.ReasonStartFailed, "qmp_capabilities", ""},
		{"qemu-no-cont", handshakeTimeout, control.ReasonStartFailed, `"cont"`, ""},
		{"qemu-babbling", quitTimeout, control.ReasonStartFailed, "", ""},
		{"qemu-closing", quitTimeout, control.ReasonStartFailed, "", ""},
		{"qemu-ran-closes", quitTimeout, control.ReasonQEMUExited, "signal 9", ""},
		{"qemu-failing", 0, control.ReasonStartFailed, "exited with code 3 before the guest ran", "???qemu: out of luck\n"},
		{"qemu-crashing", 0, control.ReasonQEMUExited, "exited with code 3", "???qemu: out of luck\n"},
		{"qemu-leaving", 0, control.ReasonQEMUExited, "exited with code 0", ""},
		{"qemu-panicking", 0, control.ReasonGuestPanic, "panicked", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := launch(t, withQEMU(t, tt.name))
			if v.conn.hello.QEMUVersion != "99.1" {
				t.Errorf("version %q", v.conn.hello.QEMUVersion)
			}
			begin := time.Now()
			v.must(v.call(control.CommandStart, v.request, nil))
			select {
			case <-v.ended:
			case <-time.After(tt.bound + 20*time.Second):
				t.Fatalf("not ended after %s", time.Since(begin))
			}
			end := v.expectEnd(tt.reason, tt.message)
			if took := time.Since(begin); took > tt.bound+10*time.Second {
				t.Errorf("took %s, want %s at most and a little", took, tt.bound)
			}
			if !strings.HasSuffix(end.Stderr, tt.stderr) || len(end.Stderr) > 2048 || end.Succeeded() {
				t.Errorf("ended with %+v", end)
			}
		})
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
	v.expectState(control.StatePaused)
	v.expectState(control.StateRunning)
	if paused := v.expectState(control.StatePaused); !paused.StartedAt.Equal(*started.StartedAt) {
		t.Errorf("started at %v, paused it says %v", started.StartedAt, paused.StartedAt)
	}
	v.signals <- syscall.SIGTERM
	v.expectState(control.StateShuttingDown)
	v.expectState(control.StateExited)
	v.expectEnd(control.ReasonGracePeriodOver, "")
}
