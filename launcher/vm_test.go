package launcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// patience is how long a test waits for what must happen; a loaded machine
// starts QEMU late. It proves no bound: tests that do measure.
const patience = 60 * time.Second

const banner = "KUBEQEMU GUEST UP"

// vm is a launcher that runs in the test's process, and the test's ends of it.
type vm struct {
	*testing.T
	Config
	dir     string
	handler *handler
	conn    *connection
	signals chan os.Signal
	stdout  *transcript
	log     *transcript
	request control.StartRequest

	cancel context.CancelFunc
	end    control.Termination
	ended  chan struct{} // closed when end is set
}

// launch runs a launcher and waits for its hello. The request that start sends
// is for the boot-sector guest; a test changes it, and with configure the Config.
func launch(t *testing.T, configure ...func(*Config)) *vm {
	t.Helper()
	v := prepareVM(t, configure...)
	v.run()
	v.conn = v.handler.hello(t)
	return v
}

func prepareVM(t *testing.T, configure ...func(*Config)) *vm {
	t.Helper()
	// Not t.TempDir: a socket's path has 108 bytes at most.
	dir, err := os.MkdirTemp("", "launcher")
	if err != nil {
		t.Fatal(err)
	}
	v := &vm{T: t, dir: dir, signals: make(chan os.Signal, 8), ended: make(chan struct{}), log: newTranscript(t, "the log")}
	t.Cleanup(v.cleanup)
	v.Config = Config{
		QEMU:       program(t, "qemu-system-x86_64"),
		SlotSocket: v.path("handler.sock"), ConsoleSocket: v.path("console.sock"), AgentSocket: v.path("agent.sock"),
		Folders: disks.Folders{Images: v.path("images"), Overlays: v.path("overlays")}, ResolvConf: v.path("resolv.conf"),
		Log:     slog.New(slog.NewTextHandler(v.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Signals: v.signals,
	}
	v.must(os.Mkdir(v.Images, 0o755), os.Mkdir(v.Overlays, 0o755))
	v.Config.Stdout, v.stdout = pipe(t, "the guest's output")
	v.Config.Stderr, err = os.Create(v.path("stderr"))
	v.must(err)
	t.Cleanup(func() { v.Stdout.Close(); v.Stderr.Close() })
	for _, c := range configure {
		c(&v.Config)
	}
	v.request = control.StartRequest{Machine: guestMachine(t, v.path("guest.img")), GraceSeconds: 30}
	v.handler = listen(t, v.SlotSocket)
	return v
}

func (v *vm) run() {
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel = cancel
	go func() {
		defer close(v.ended)
		v.end = Run(ctx, v.Config)
	}()
}

func (v *vm) cleanup() {
	if v.cancel != nil {
		v.cancel()
		select {
		case <-v.ended:
		case <-time.After(patience):
			v.Error("the launcher did not end with its context")
		}
	}
	if v.Failed() {
		m := v.request.Machine
		v.Logf("QEMU's command line (3 is the QMP socket, 4 the serial port's):\n%s", qemuargs.Quote(v.QEMU, m.Args()))
		v.Logf("the launcher's log:\n%s", v.log.text())
		v.Logf("the guest's output: %q", last(v.stdout.text(), 2000))
		if data, err := os.ReadFile(v.path("stderr")); err == nil {
			v.Logf("QEMU's stderr: %s", data)
		}
	}
	os.RemoveAll(v.dir)
}

func last(s string, n int) string { return s[max(0, len(s)-n):] }

func (v *vm) path(name string) string { return filepath.Join(v.dir, name) }

func (v *vm) must(errs ...error) {
	v.Helper()
	if err := errors.Join(errs...); err != nil {
		v.Fatal(err)
	}
}

// call sends a command to the launcher.
func (v *vm) call(command string, arguments, result any, files ...control.File) error {
	v.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return v.conn.Call(ctx, command, arguments, result, files...)
}

// start sends the start request and waits until the guest's CPUs run.
func (v *vm) start(files ...control.File) control.StateReport {
	v.Helper()
	v.must(v.call(control.CommandStart, v.request, nil, files...))
	v.expectState(control.StatePreparing)
	return v.expectState(control.StateRunning)
}

// boot is start, and waits for the guest's banner.
func (v *vm) boot(files ...control.File) control.StateReport {
	v.Helper()
	report := v.start(files...)
	v.stdout.expect(banner)
	return report
}

// expectState waits for the next state that the launcher reports.
func (v *vm) expectState(want control.State) control.StateReport {
	v.Helper()
	got := receive(v.T, v.conn.states, "state "+string(want))
	if got.State != want {
		v.Fatalf("state %s, want %s", got.State, want)
	}
	return got
}

// termination waits for the launcher's end.
func (v *vm) termination() control.Termination {
	v.Helper()
	receive(v.T, v.ended, "the launcher's end")
	return v.end
}

// expectEnd waits for the end, and checks its reason and a part of its message.
func (v *vm) expectEnd(reason control.Reason, message string) control.Termination {
	v.Helper()
	end := v.termination()
	if end.Reason != reason || !strings.Contains(end.Message, message) {
		v.Errorf("ended with %+v, want reason %s and a message with %q", end, reason, message)
	}
	return end
}

// qemuGone checks that the process is no more, not even as a zombie.
func (v *vm) qemuGone(report control.StateReport) {
	v.Helper()
	if err := syscall.Kill(report.QEMUPID, 0); !errors.Is(err, syscall.ESRCH) {
		v.Errorf("QEMU, process %d, is still there: %v", report.QEMUPID, err)
	}
}

// receive waits for a channel's next value or its end.
func receive[V any](t *testing.T, c <-chan V, what string) V {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case value := <-c:
		return value
	case <-timer.C:
	}
	t.Fatalf("waited %s in vain for %s", patience, what)
	panic("not reached")
}

func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: install Debian's qemu-system-x86 and qemu-utils (make packages)", err)
	}
	return path
}

// transcript is text that is written while the test waits for parts of it.
type transcript struct {
	t    *testing.T
	what string

	mu    sync.Mutex
	data  []byte
	found int           // end of what was expected last
	more  chan struct{} // closed and made anew when something is added
}

func newTranscript(t *testing.T, what string) *transcript {
	return &transcript{t: t, what: what, more: make(chan struct{})}
}

func (s *transcript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data = append(s.data, p...)
	close(s.more)
	s.more = make(chan struct{})
	return len(p), nil
}

func (s *transcript) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.data)
}

// waitFor waits until done says so of the whole text.
func (s *transcript) waitFor(what string, done func(data []byte) bool) {
	s.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		s.mu.Lock()
		ok, more := done(s.data), s.more
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-more:
		case <-timer.C:
			s.t.Fatalf("%s has no %s within %s: %q", s.what, what, patience, last(s.text(), 1000))
		}
	}
}

// expect waits for text after what was expected before.
func (s *transcript) expect(text string) {
	s.t.Helper()
	s.waitFor(fmt.Sprintf("%q", text), func(data []byte) bool {
		i := bytes.Index(data[s.found:], []byte(text))
		if i >= 0 {
			s.found += i + len(text)
		}
		return i >= 0
	})
}

// pipe is a pipe's writing end, and what comes out at the other.
func pipe(t *testing.T, what string) (*os.File, *transcript) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s, done := newTranscript(t, what), make(chan struct{})
	go func() { defer close(done); io.Copy(s, r) }()
	t.Cleanup(func() { w.Close(); <-done; r.Close() })
	return w, s
}

// guestMachine is the machine of testdata, its disk the boot sector of
// testdata and a MiB of nothing.
func guestMachine(t *testing.T, path string) qemuargs.Machine {
	t.Helper()
	listing, err := os.ReadFile("testdata/guest.lst")
	if err != nil {
		t.Fatal(err)
	}
	disk := make([]byte, 1<<20)
	n := 0
	for line := range strings.Lines(string(listing)) {
		code, _, _ := strings.Cut(line, ";")
		for _, b := range strings.Fields(code) {
			if _, err := fmt.Sscanf(b, "%02x", &disk[n]); err != nil {
				t.Fatalf("guest.lst: %q: %v", line, err)
			}
			n++
		}
	}
	if n > 510 {
		t.Fatalf("guest.lst holds %d bytes, a boot sector 510", n)
	}
	disk[510], disk[511] = 0x55, 0xaa
	data, err := os.ReadFile("testdata/machine.json")
	var m qemuargs.Machine
	if err := errors.Join(err, json.Unmarshal(data, &m), os.WriteFile(path, disk, 0o644)); err != nil {
		t.Fatal(err)
	}
	m.Disks[0].Image.Path = path
	return m
}

func TestMain(m *testing.M) {
	// Most tests wait, for timeouts above all, and take no CPU meanwhile.
	os.Exit(fakes.Run(m, 6))
}
