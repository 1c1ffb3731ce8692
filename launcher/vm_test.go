package launcher

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

const (
	patience = testkit.Patience
	// tooLate is more than a busy machine takes. A launcher that waited for QEMU's handshake would take longer.
	tooLate = handshakeTimeout
	banner  = launchertest.Banner
)

// vm is a launcher that runs in the test's process, and the test's ends of it.
type vm struct {
	*testing.T
	Config
	dir     string
	handler *net.UnixListener
	conn    *launchertest.Launcher
	signals chan os.Signal
	stdout  *testkit.Transcript
	log     *testkit.Transcript
	request control.StartRequest

	cancel context.CancelFunc
	end    control.Termination
	ended  chan struct{} // closed when end is set
	// retired: if the test fails, its reason is not here.
	retired bool
}

// launch runs a launcher and waits for its hello. The request that start sends
// is for the boot-sector guest; a test changes it, and with configure the Config.
func launch(t *testing.T, configure ...func(*Config)) *vm {
	t.Helper()
	v := prepareVM(t, configure...)
	v.run()
	v.conn = launchertest.Accept(t, v.handler)
	return v
}

func prepareVM(t *testing.T, configure ...func(*Config)) *vm {
	t.Helper()
	// Not t.TempDir: a socket's path has 108 bytes at most.
	dir, err := os.MkdirTemp("", "launcher")
	if err != nil {
		t.Fatal(err)
	}
	v := &vm{T: t, dir: dir, signals: make(chan os.Signal, 8), ended: make(chan struct{}),
		log: testkit.NewTranscript(t, "the log")}
	t.Cleanup(v.cleanup)
	v.Config = Config{
		QEMU:       launchertest.Program(t, "qemu-system-x86_64"),
		SlotSocket: v.path("handler.sock"), ConsoleSocket: v.path("console.sock"), AgentSocket: v.path("agent.sock"),
		Folders: disks.Folders{Images: v.path("images"), Overlays: v.path("overlays")}, ResolvConf: v.path("resolv.conf"),
		Log:     slog.New(slog.NewTextHandler(v.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Signals: v.signals,
	}
	v.must(os.Mkdir(v.Images, 0o755), os.Mkdir(v.Overlays, 0o755))
	v.Config.Stdout, v.stdout = testkit.Pipe(t, "the guest's output")
	v.Config.Stderr, err = os.Create(v.path("stderr"))
	v.must(err)
	t.Cleanup(func() { v.Stdout.Close(); v.Stderr.Close() })
	for _, c := range configure {
		c(&v.Config)
	}
	v.request = control.StartRequest{Machine: launchertest.Guest(t, v.path("guest.img")), GraceSeconds: 30}
	v.handler = launchertest.Listen(t, v.SlotSocket)
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
	v.stop()
	if v.Failed() && !v.retired {
		m := v.request.Machine
		v.Logf("QEMU's command line (3 is the QMP socket, 4 the serial port's):\n%s", qemuargs.Quote(v.QEMU, m.Args()))
		v.Logf("the launcher's log:\n%s", v.log.String())
		v.Logf("the guest's output: %q", last(v.stdout.String(), 2000))
		if data, err := os.ReadFile(v.path("stderr")); err == nil {
			v.Logf("QEMU's stderr: %s", data)
		}
	}
	os.RemoveAll(v.dir)
}

// stop ends the launcher.
func (v *vm) stop() {
	if v.cancel != nil {
		v.cancel()
		select {
		case <-v.ended:
		case <-time.After(patience):
			v.Error("the launcher did not end with its context")
		}
	}
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
	return v.conn.Ask(command, arguments, result, files...)
}

// start sends the start request and waits until the guest's CPUs run.
func (v *vm) start(files ...control.File) control.StateReport {
	v.Helper()
	v.must(v.call(control.CommandStart, v.request, nil, files...))
	v.expectState(control.StatePreparing)
	return v.expectState(control.StateRunning)
}

// boot does what start does, and waits for the guest's banner.
func (v *vm) boot(files ...control.File) control.StateReport {
	v.Helper()
	report := v.start(files...)
	v.stdout.Expect(banner)
	return report
}

// expectState waits for the next state that the launcher reports.
func (v *vm) expectState(want control.State) control.StateReport {
	v.Helper()
	got := testkit.Receive(v.T, v.conn.States, "state "+string(want))
	if got.State != want {
		v.Fatalf("state %s, want %s", got.State, want)
	}
	return got
}

// termination waits for the launcher's end.
func (v *vm) termination() control.Termination {
	v.Helper()
	testkit.Receive(v.T, v.ended, "the launcher's end")
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

func TestMain(m *testing.M) {
	// Most tests wait, for timeouts above all, and take no CPU meanwhile.
	os.Exit(fakes.Run(m, 6))
}
