package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// patience is how long a test waits for what must happen.
const patience = 60 * time.Second

// binary is virt-launcher, built as it is shipped.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "virt-launcher")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "virt-launcher")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	code := 1
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build virt-launcher: %v: %s", err, out)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// process is a running virt-launcher, with the test as its handler.
type process struct {
	*testing.T
	dir     string
	cmd     *exec.Cmd
	ended   chan struct{}
	client  *control.Client
	states  chan control.StateReport
	output  *output // stdout and stderr
	request control.StartRequest
}

// launch starts virt-launcher and waits for its hello. Its termination log is there.
func launch(t *testing.T, args ...string) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", "virt-launcher")
	if err != nil {
		t.Fatal(err)
	}
	p := &process{T: t, dir: dir, output: newOutput(), ended: make(chan struct{}), states: make(chan control.StateReport, 100)}
	p.must(os.WriteFile(p.path("termination-log"), []byte("what was there before"), 0o644))
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatalf("%v: install Debian's qemu-system-x86 (make packages)", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.path("handler.sock"), Net: "unix"})
	p.must(err)
	defer listener.Close()
	p.cmd = exec.Command(binary, append([]string{"run", "--slot", p.path("handler.sock"), "--qemu", qemu, "--console", p.path("console.sock"), "--agent", p.path("agent.sock"),
		"--images", p.path("images"), "--overlays", dir, "--termination-log", p.path("termination-log")}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	// Should the test end without its cleanup.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.must(p.cmd.Start())
	go func() { defer close(p.ended); p.cmd.Wait() }()
	t.Cleanup(p.cleanup)
	p.request = control.StartRequest{Machine: guestMachine(t, p.path("guest.img")), GraceSeconds: 30}
	p.connect(listener)
	return p
}

func (p *process) connect(listener *net.UnixListener) {
	p.Helper()
	listener.SetDeadline(time.Now().Add(patience))
	conn, err := listener.AcceptUnix()
	p.must(err)
	hello := make(chan struct{})
	p.client = control.NewClient(control.NewConn(conn), control.Limits{}, func(m *control.Message) {
		defer m.Close()
		var report control.StateReport
		switch {
		case m.Event == control.EventHello:
			close(hello)
		case json.Unmarshal(m.Data, &report) == nil:
			p.states <- report
		}
	})
	receive(p.T, hello, "hello")
}

func (p *process) cleanup() {
	// QEMU goes with it.
	p.cmd.Process.Kill()
	<-p.ended
	if p.client != nil {
		p.client.Close()
	}
	if p.Failed() {
		m := p.request.Machine
		p.Logf("QEMU's command line (3 is the QMP socket, 4 the serial port's):\n%s", qemuargs.Quote("qemu-system-x86_64", m.Args()))
		p.Logf("virt-launcher's output:\n%s", p.output)
	}
	os.RemoveAll(p.dir)
}

func (p *process) path(name string) string { return filepath.Join(p.dir, name) }

func (p *process) must(errs ...error) {
	p.Helper()
	if err := errors.Join(errs...); err != nil {
		p.Fatal(err)
	}
}

// start sends the start request.
func (p *process) start(files ...control.File) {
	p.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p.must(p.client.Call(ctx, control.CommandStart, p.request, nil, files...))
}

// boot starts the guest and waits for its banner.
func (p *process) boot(files ...control.File) control.StateReport {
	p.Helper()
	p.start(files...)
	for {
		report := receive(p.T, p.states, "the running state")
		if report.State == control.StateRunning {
			p.output.expect(p.T, "KUBEQEMU GUEST UP")
			return report
		}
	}
}

// expectEnd waits for the end, and checks its exit code and termination message.
func (p *process) expectEnd(code int, reason control.Reason) control.Termination {
	p.Helper()
	receive(p.T, p.ended, "virt-launcher's end")
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.Errorf("exit code %d (%s), want %d", got, p.cmd.ProcessState, code)
	}
	message, err := os.ReadFile(p.path("termination-log"))
	p.must(err)
	var end control.Termination
	if err := control.Decode(message, &end); err != nil || len(message) > 4096 || end.Reason != reason {
		p.Errorf("termination message of %d bytes: %s (%v), want reason %s", len(message), message, err, reason)
	}
	return end
}

// keys writes to the guest's serial port, over a console of its own.
func (p *process) keys(text string) {
	p.Helper()
	conn, err := net.Dial("unix", p.path("console.sock"))
	p.must(err)
	defer conn.Close()
	_, err = conn.Write([]byte(text))
	p.must(err)
}

func TestExitsWithTheGuest(t *testing.T) {
	p := launch(t)
	p.boot()
	p.keys("P")
	if end := p.expectEnd(0, control.ReasonGuestShutdown); !end.Succeeded() {
		t.Errorf("ended with %+v", end)
	}
}

func TestSignals(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			p := launch(t)
			p.boot()
			p.keys("B")
			p.output.expect(t, "b")
			p.must(p.cmd.Process.Signal(s))
			p.expectEnd(0, control.ReasonShutdown)
		})
	}
}

func TestExitCodeOfFailures(t *testing.T) {
	t.Run("before the start", func(t *testing.T) {
		p := launch(t)
		p.must(p.cmd.Process.Signal(syscall.SIGTERM))
		p.expectEnd(1, control.ReasonNeverStarted)
	})
	t.Run("machine type", func(t *testing.T) {
		p := launch(t)
		p.request.Machine.Type = "pc-q35-99.9"
		p.start()
		if end := p.expectEnd(1, control.ReasonStartFailed); !strings.Contains(end.Stderr, "unsupported machine type") || end.ExitCode != 1 {
			t.Errorf("ended with %+v", end)
		}
	})
	t.Run("grace period", func(t *testing.T) {
		p := launch(t)
		p.request.GraceSeconds = 1
		p.boot()
		p.must(p.cmd.Process.Signal(syscall.SIGTERM))
		p.expectEnd(1, control.ReasonGracePeriodOver)
	})
	t.Run("QEMU killed", func(t *testing.T) {
		p := launch(t)
		p.must(syscall.Kill(p.boot().QEMUPID, syscall.SIGKILL))
		if end := p.expectEnd(1, control.ReasonQEMUExited); end.Signal != "killed" {
			t.Errorf("ended with %+v", end)
		}
	})
}

// TestTerminationMessageIsBounded: Kubernetes takes 4096 bytes, and QEMU may
// write more, all of which JSON escapes sixfold.
func TestTerminationMessageIsBounded(t *testing.T) {
	script := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nif [ \"$1\" = -version ]; then echo QEMU emulator version 99.1; exit; fi\n"+
		"head -c 5000 /dev/zero | tr '\\0' '\\1' >&2; echo last words >&2; exit 7\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := launch(t, "--qemu", script)
	p.start()
	if end := p.expectEnd(1, control.ReasonStartFailed); !strings.HasSuffix(end.Stderr, "\x01last words\n") {
		t.Errorf("ended with %+v", end)
	}
}

// TestNoTerminationLog: outside of a pod there is none, and none is made.
func TestNoTerminationLog(t *testing.T) {
	p := launch(t)
	p.must(os.Remove(p.path("termination-log")), p.cmd.Process.Signal(syscall.SIGTERM))
	receive(t, p.ended, "virt-launcher's end")
	if _, err := os.Stat(p.path("termination-log")); !errors.Is(err, os.ErrNotExist) || p.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%s, termination log: %v", p.cmd.ProcessState, err)
	}
}

// TestKilled: QEMU does not outlive its launcher, not even one that had no
// time to say goodbye.
func TestKilled(t *testing.T) {
	p := launch(t)
	running := p.boot()
	// Readable once the process has exited, whoever its parent is by then.
	fd, err := unix.PidfdOpen(running.QEMUPID, 0)
	p.must(err)
	defer unix.Close(fd)
	p.must(p.cmd.Process.Kill())
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, int(patience.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Errorf("QEMU, process %d, outlives its launcher (%v)", running.QEMUPID, err)
			syscall.Kill(running.QEMUPID, syscall.SIGKILL)
		}
		return
	}
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		text string
	}{
		{"--help", 0, "Flags of run:"},
		{"run --help", 0, "  -slot socket"},
		{"run -h", 0, "Usage: virt-launcher [COMMAND] [FLAGS]"},
		{"console --help", 0, "Flags of console:"},
		{"fly", 2, "Usage: virt-launcher [COMMAND] [FLAGS]"},
		{"run --fly", 2, "flag provided but not defined: -fly"},
		{"--verbose fly", 2, `unexpected argument "fly"`},
		{"console x", 2, `unexpected argument "x"`},
		{"console --console /nonexistent/socket", 1, "no such file or directory"},
	} {
		out, err := exec.Command(binary, strings.Fields(tt.args)...).CombinedOutput()
		code := 0
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != tt.code || !strings.Contains(string(out), tt.text) {
			t.Errorf("virt-launcher %s: exit code %d, want %d; %q in output: %s", tt.args, code, tt.code, tt.text, out)
		}
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

// output is what a process has written so far.
type output struct {
	mu    sync.Mutex
	data  []byte
	found int // end of what was expected last
	more  chan struct{}
}

func newOutput() *output { return &output{more: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.data = append(o.data, p...)
	close(o.more)
	o.more = make(chan struct{})
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.data)
}

// find looks for text after what was found before.
func (o *output) find(text string) (found bool, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := bytes.Index(o.data[o.found:], []byte(text))
	if i >= 0 {
		o.found += i + len(text)
	}
	return i >= 0, o.more
}

func (o *output) expect(t *testing.T, text string) {
	t.Helper()
	for timer := time.NewTimer(patience); ; {
		found, more := o.find(text)
		if found {
			timer.Stop()
			return
		}
		select {
		case <-more:
		case <-timer.C:
			t.Fatalf("no %q within %s in %q", text, patience, o)
		}
	}
}

// guestMachine is the machine of package launcher's tests, its disk their boot
// sector and a MiB of nothing.
func guestMachine(t *testing.T, path string) qemuargs.Machine {
	t.Helper()
	listing, err := os.ReadFile("../../launcher/testdata/guest.lst")
	if err != nil {
		t.Fatal(err)
	}
	disk := make([]byte, 0, 1<<20)
	for line := range strings.Lines(string(listing)) {
		code, _, _ := strings.Cut(line, ";")
		for _, field := range strings.Fields(code) {
			var b byte
			if _, err := fmt.Sscanf(field, "%02x", &b); err != nil {
				t.Fatalf("guest.lst: %q: %v", line, err)
			}
			disk = append(disk, b)
		}
	}
	disk = disk[:cap(disk)]
	disk[510], disk[511] = 0x55, 0xaa
	data, err := os.ReadFile("../../launcher/testdata/machine.json")
	var m qemuargs.Machine
	if err := errors.Join(err, json.Unmarshal(data, &m), os.WriteFile(path, disk, 0o644)); err != nil {
		t.Fatal(err)
	}
	m.Disks[0].Image.Path = path
	return m
}
