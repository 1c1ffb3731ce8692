package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

const patience = testkit.Patience

// binary is virt-launcher, built as it is shipped.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "virt-launcher")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "virt-launcher")
	build := exec.Command("go", "build", "-trimpath", "-gcflags=all=-l", "-ldflags", "-s -w", "-o", binary, ".")
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
type launched struct {
	*testing.T
	dir     string
	cmd     *exec.Cmd
	ended   chan struct{}
	conn    *launchertest.Launcher
	output  *testkit.Transcript // stdout and stderr
	request control.StartRequest
}

// launch starts virt-launcher and waits for its hello. Its termination log is there.
func launch(t *testing.T, args ...string) *launched {
	t.Helper()
	dir, err := os.MkdirTemp("", "virt-launcher")
	if err != nil {
		t.Fatal(err)
	}
	p := &launched{T: t, dir: dir, output: testkit.NewTranscript(t, "virt-launcher's output"), ended: make(chan struct{})}
	p.must(os.WriteFile(p.path("termination-log"), []byte("what was there before"), 0o644))
	qemu := launchertest.Program(t, "qemu-system-x86_64")
	listener := launchertest.Listen(t, p.path("handler.sock"))
	p.cmd = exec.Command(binary, append([]string{"run", "--slot", p.path("handler.sock"), "--qemu", qemu, "--console", p.path("console.sock"), "--agent", p.path("agent.sock"),
		"--images", p.path("images"), "--overlays", dir, "--termination-log", p.path("termination-log")}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	// Should the test end without its cleanup.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.must(p.cmd.Start())
	go func() { defer close(p.ended); p.cmd.Wait() }()
	t.Cleanup(p.cleanup)
	p.request = control.StartRequest{Machine: launchertest.Guest(t, p.path("guest.img")), GraceSeconds: 30}
	p.conn = launchertest.Accept(t, listener)
	return p
}

func (p *launched) cleanup() {
	// QEMU goes with it.
	p.cmd.Process.Kill()
	<-p.ended
	if p.Failed() {
		m := p.request.Machine
		p.Logf("QEMU's command line (3 is the QMP socket, 4 the serial port's):\n%s", qemuargs.Quote("qemu-system-x86_64", m.Args()))
		p.Logf("virt-launcher's output:\n%s", p.output)
	}
	os.RemoveAll(p.dir)
}

func (p *launched) path(name string) string { return filepath.Join(p.dir, name) }

func (p *launched) must(errs ...error) {
	p.Helper()
	if err := errors.Join(errs...); err != nil {
		p.Fatal(err)
	}
}

// start sends the start request.
func (p *launched) start(files ...control.File) {
	p.Helper()
	p.must(p.conn.Ask(control.CommandStart, p.request, nil, files...))
}

// boot starts the guest and waits for its banner.
func (p *launched) boot(files ...control.File) control.StateReport {
	p.Helper()
	p.start(files...)
	for {
		report := testkit.Receive(p.T, p.conn.States, "the running state")
		if report.State == control.StateRunning {
			p.output.Expect(launchertest.Banner)
			return report
		}
	}
}

// expectEnd waits for the end, and checks its exit code and termination message.
func (p *launched) expectEnd(code int, reason control.Reason) control.Termination {
	p.Helper()
	testkit.Receive(p.T, p.ended, "virt-launcher's end")
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
func (p *launched) keys(text string) {
	p.Helper()
	conn, err := net.Dial("unix", p.path("console.sock"))
	p.must(err)
	defer conn.Close()
	_, err = conn.Write([]byte(text))
	p.must(err)
}

// TestSecondLauncherIsRefused: who calls virt-launcher in a VM's pod by hand gets help, and starts no second launcher.
func TestSecondLauncherIsRefused(t *testing.T) {
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"": {0, "Usage: virt-launcher COMMAND"}, "--help": {0, "Usage: virt-launcher COMMAND"}, "help": {0, "Usage: virt-launcher COMMAND"}, "fly": {2, `there is no command "fly"`},
		"run": {2, "the pod has its launcher already"}, "run --verbosity 4": {2, "the pod has its launcher already"}, "run more": {2, `unexpected argument "more"`},
	} {
		cmd := exec.CommandContext(t.Context(), binary, strings.Fields(args)...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != want.code || !strings.Contains(string(out), want.says) {
			t.Errorf("virt-launcher %s: %v: %s", args, err, out)
		}
	}
}

func TestExitsWithTheGuest(t *testing.T) {
	p := launch(t)
	p.boot()
	p.keys("P")
	if end := p.expectEnd(0, control.ReasonGuestShutdown); !end.Succeeded() {
		t.Errorf("ended with %+v", end)
	}
}

func TestSignalsShutTheGuestDown(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			p := launch(t)
			p.boot()
			p.keys("B")
			p.output.Expect("b")
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
	testkit.Program(t, script, []byte("#!/bin/sh\nif [ \"$1\" = -version ]; then echo QEMU emulator version 99.1; exit; fi\n"+
		"head -c 5000 /dev/zero | tr '\\0' '\\1' >&2; echo last words >&2; exit 7\n"))
	p := launch(t, "--qemu", script)
	p.start()
	if end := p.expectEnd(1, control.ReasonStartFailed); !strings.HasSuffix(end.Stderr, "\x01last words\n") {
		t.Errorf("ended with %+v", end)
	}
}

// TestNoTerminationLogIsMadeOutsideAPod: outside of a pod there is none, and none is made.
func TestNoTerminationLogIsMadeOutsideAPod(t *testing.T) {
	p := launch(t)
	p.must(os.Remove(p.path("termination-log")), p.cmd.Process.Signal(syscall.SIGTERM))
	testkit.Receive(t, p.ended, "virt-launcher's end")
	if _, err := os.Stat(p.path("termination-log")); !errors.Is(err, os.ErrNotExist) || p.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%s, termination log: %v", p.cmd.ProcessState, err)
	}
}

// TestQEMUDiesWithItsLauncher: QEMU does not outlive its launcher, not even one that had no
// time to say goodbye.
func TestQEMUDiesWithItsLauncher(t *testing.T) {
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

// maxRSS is the launcher's budget beside an idle guest, in kB.
const maxRSS = 8 << 10

// TestIdleMemory: virt-launcher, as it is shipped, has its budget beside a guest that
// runs. TestMemory has the guest do more.
func TestIdleMemory(t *testing.T) {
	p := launch(t)
	p.boot()
	// Something may still be on its way.
	testkit.Eventually(t, "a launcher within its budget", func() error {
		rss := memoryOf(p, p.cmd.Process.Pid)["VmRSS"]
		if rss == 0 || rss > maxRSS {
			return fmt.Errorf("it has %d kB resident, its budget is %d kB", rss, maxRSS)
		}
		t.Logf("%d kB resident", rss)
		return nil
	})
}

// memoryOf is a process' memory in kB, by the names of /proc/PID/status and
// /proc/PID/smaps_rollup.
func memoryOf(p *launched, pid int) map[string]int {
	p.Helper()
	values := map[string]int{}
	for _, name := range []string{"status", "smaps_rollup"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		p.must(err)
		for line := range strings.Lines(string(data)) {
			var kB int
			key, value, _ := strings.Cut(line, ":")
			if n, _ := fmt.Sscanf(value, "%d kB", &kB); n == 1 {
				values[key] = kB
			}
		}
	}
	return values
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		text string
	}{
		{"--help", 0, "Usage: virt-launcher COMMAND [FLAGS]"},
		{"run --help", 0, "  -slot socket"},
		{"run -h", 0, "Usage: virt-launcher COMMAND [FLAGS]"},
		{"console --help", 0, "Flags of console:"},
		{"fly", 2, "Usage: virt-launcher COMMAND [FLAGS]"},
		{"", 2, "Usage: virt-launcher"}, // an empty argument
		{"run extra", 2, `unexpected argument "extra"`},
		{"guest-ping extra", 2, `unexpected argument "extra"`},
		{"guest-ping --socket /nowhere", 1, "ask the guest agent: dial"},
		{"guest-exec", 2, "no command to run in the guest"},
		{"guest-exec --socket /nowhere -- /bin/true", 1, "ask the guest agent: dial"},
		{"run --fly", 2, "flag provided but not defined: -fly"},
		{"--verbosity=4 fly", 2, `there is no command "--verbosity=4"`},
		{"console x", 2, `unexpected argument "x"`},
		{"console --console /nonexistent/socket", 1, "no such file or directory"},
	} {
		out, err := exec.Command(binary, strings.Split(tt.args, " ")...).CombinedOutput()
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
