// Package launcher_test runs the launcher with the real QEMU and the smallest
// of guests, in virt-handler's place.
package launcher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// patience bounds every wait of these tests.
const patience = 30 * time.Second

// vm is a launcher under test, and the test in virt-handler's place.
type vm struct {
	t        *testing.T
	config   launcher.Config
	listener *net.UnixListener
	signals  chan os.Signal
	done     chan control.Termination

	client *control.Client
	hello  control.Hello
	states chan control.StateReport
}

func qemu(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatalf("%v: install Debian's qemu-system-x86 (make packages)", err)
	}
	return path
}

// launch runs a launcher and takes its hello.
func launch(t *testing.T) *vm {
	t.Helper()
	v := prepareVM(t)
	v.run()
	return v
}

func (v *vm) run() {
	v.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	go func() { v.done <- launcher.Run(ctx, v.config) }()
	v.t.Cleanup(func() {
		cancel() // kills QEMU, if the test has not ended it
		select {
		case end := <-v.done:
			v.done <- end
		case <-time.After(patience):
			v.t.Error("the launcher did not end")
		}
	})
	v.accept()
}

// prepareVM makes what a launcher needs, and listens where it will dial.
func prepareVM(t *testing.T) *vm {
	t.Helper()
	dir := t.TempDir()
	v := &vm{t: t, signals: make(chan os.Signal, 1), done: make(chan control.Termination, 1)}
	stdout, err := os.Create(filepath.Join(dir, "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	v.config = launcher.Config{
		QEMU: qemu(t), SlotSocket: filepath.Join(dir, "slot"), ConsoleSocket: filepath.Join(dir, "console"), AgentSocket: filepath.Join(dir, "agent"),
		Folders: disks.Folders{Images: dir, Overlays: dir}, Stdout: stdout, Stderr: os.Stderr, Signals: v.signals,
		Log: slog.New(slog.NewTextHandler(&testLog{t: t}, nil)),
	}
	if v.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: v.config.SlotSocket, Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if v.client != nil {
			v.client.Close()
		}
		v.listener.Close()
		stdout.Close()
	})
	return v
}

// testLog puts the launcher's log into the test's.
type testLog struct {
	t  *testing.T
	mu sync.Mutex
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.Logf("%s", bytes.TrimSpace(p))
	return len(p), nil
}

// accept takes the launcher's next connection and its hello.
func (v *vm) accept() {
	v.t.Helper()
	v.listener.SetDeadline(time.Now().Add(patience))
	conn, err := v.listener.AcceptUnix()
	if err != nil {
		v.t.Fatal(err)
	}
	hello := make(chan *control.Message, 1)
	states := make(chan control.StateReport, 16)
	greeted := false
	v.states = states
	v.client = control.NewClient(control.NewConn(conn), control.Limits{}, func(m *control.Message) {
		if !greeted {
			greeted = true
			hello <- m
			return
		}
		var state control.StateReport
		if err := control.Decode(m.Data, &state); err != nil {
			v.t.Errorf("event %s: %v", m.Event, err)
		}
		states <- state
	})
	select {
	case m := <-hello:
		defer m.Close()
		if err := control.Decode(m.Data, &v.hello); err != nil || m.Event != control.EventHello || len(m.Files) != 1 {
			v.t.Fatalf("hello: %v, %+v", err, m)
		}
	case <-time.After(patience):
		v.t.Fatal("no hello")
	}
}

func (v *vm) call(command string, arguments, result any, files ...control.File) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return v.client.Call(ctx, command, arguments, result, files...)
}

// machine is a guest of one disk.
func (v *vm) machine(kind string) qemuargs.Machine {
	disk := guestDisk(v.t, kind)
	return qemuargs.Machine{
		Version: qemuargs.Version, Arch: qemuargs.AMD64, SATA: true, Name: "test_" + kind, UUID: "0a1b2c3d-0000-4000-8000-000000000001",
		Type: "pc-q35-7.2", Accelerator: qemuargs.TCG, MemoryBytes: 32 << 20,
		CPU:    qemuargs.CPU{Model: "max", Sockets: 1, Cores: 1, Threads: 1},
		Serial: &qemuargs.Serial{},
		Disks: []qemuargs.Disk{{Name: "root", Driver: qemuargs.IDEDisk, Bus: "ide.0", BootIndex: 1,
			Image:   qemuargs.Image{Path: disk, Format: qemuargs.Raw},
			Overlay: &qemuargs.Overlay{Path: disk + ".overlay", VirtualSize: 1 << 20}}},
	}
}

// start asks for a machine; a failing test shows how QEMU was called.
func (v *vm) start(m qemuargs.Machine, grace int64) {
	v.t.Helper()
	v.t.Cleanup(func() {
		if v.t.Failed() {
			v.t.Log(qemuargs.Quote(v.config.QEMU, m.Args()))
		}
	})
	if err := v.call(control.CommandStart, control.StartRequest{Machine: m, GraceSeconds: grace}, nil); err != nil {
		v.t.Fatal(err)
	}
}

func (v *vm) await(want control.State) control.StateReport {
	v.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case s := <-v.states:
			if s.State == want {
				return s
			}
		case <-timeout:
			v.t.Fatalf("the launcher did not become %s", want)
		}
	}
}

// booted waits until the guest has written to its serial port.
func (v *vm) booted() {
	v.t.Helper()
	deadline := time.Now().Add(patience)
	for !bytes.Contains(v.stdout(), []byte("guest: up")) {
		if time.Now().After(deadline) {
			v.t.Fatalf("the guest did not boot: %q", v.stdout())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (v *vm) stdout() []byte {
	data, err := os.ReadFile(v.config.Stdout.Name())
	if err != nil {
		v.t.Fatal(err)
	}
	return data
}

// ends waits for the launcher's end and checks the reason.
func (v *vm) ends(want control.Reason) control.Termination {
	v.t.Helper()
	select {
	case end := <-v.done:
		v.done <- end
		if end.Reason != want {
			v.t.Errorf("ended as %+v, want %s", end, want)
		}
		return end
	case <-time.After(patience):
		v.t.Fatal("the launcher did not end")
		return control.Termination{}
	}
}

// gone says whether a process has ended.
func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func toJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
