package launcher_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func TestPowerButton(t *testing.T) {
	v := launch(t)
	if v.hello.Version != control.Version || !strings.Contains(v.hello.QEMUVersion, ".") || v.hello.State.State != control.StateWaiting {
		t.Errorf("hello: %+v", v.hello)
	}
	m := v.machine("polite")
	v.start(m, 20)
	running := v.await(control.StateRunning)
	if running.StartedAt == nil || running.QEMUPID == 0 || running.Machine == nil {
		t.Errorf("state: %+v", running)
	}
	v.booted()
	var asked control.StateReport
	if err := v.call(control.CommandQueryState, nil, &asked); err != nil || toJSON(t, asked) != toJSON(t, running) {
		t.Errorf("query-state: %v\n%s\n%s", err, toJSON(t, asked), toJSON(t, running))
	}
	v.signals <- syscall.SIGTERM
	v.await(control.StateShuttingDown)
	end := v.ends(control.ReasonShutdown)
	if !end.Succeeded() || !bytes.Contains(v.stdout(), []byte("guest: bye")) {
		t.Errorf("end %+v, console %q", end, v.stdout())
	}
	if !gone(running.QEMUPID) {
		t.Error("QEMU is still there")
	}
}

func TestEnds(t *testing.T) {
	tests := map[string]struct {
		guest  string
		grace  int64
		edit   func(*qemuargs.Machine)
		act    func(v *vm, qemu int)
		reason control.Reason
		atMost time.Duration // from act to the end
		says   string        // in message and stderr
	}{
		"guest powers off": {guest: "brief", grace: 20, reason: control.ReasonGuestShutdown, atMost: patience},
		"grace period over": {guest: "deaf", grace: 1, reason: control.ReasonGracePeriodOver, atMost: 5 * time.Second,
			act: func(v *vm, _ int) { v.signals <- syscall.SIGTERM }, says: "within 1 seconds"},
		"no grace": {guest: "deaf", grace: 0, reason: control.ReasonGracePeriodOver, atMost: 3 * time.Second,
			act: func(v *vm, _ int) { v.signals <- syscall.SIGTERM }},
		"no ACPI": {guest: "deaf", grace: 20, reason: control.ReasonShutdown, atMost: 5 * time.Second,
			edit: func(m *qemuargs.Machine) { m.NoACPI = true },
			act:  func(v *vm, _ int) { v.signals <- syscall.SIGTERM }},
		"asked by the handler": {guest: "polite", grace: 20, reason: control.ReasonShutdown, atMost: 10 * time.Second,
			act: func(v *vm, _ int) { v.call(control.CommandShutdown, nil, nil) }},
		"QEMU is killed": {guest: "polite", grace: 20, reason: control.ReasonQEMUExited, atMost: 5 * time.Second,
			act: func(_ *vm, qemu int) { syscall.Kill(qemu, syscall.SIGKILL) }, says: "signal 9"},
		"QEMU hangs": {guest: "polite", grace: 1, reason: control.ReasonGracePeriodOver, atMost: 15 * time.Second,
			act: func(v *vm, qemu int) { syscall.Kill(qemu, syscall.SIGSTOP); v.signals <- syscall.SIGTERM }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := launch(t)
			m := v.machine(tt.guest)
			if tt.edit != nil {
				tt.edit(&m)
			}
			v.start(m, tt.grace)
			running := v.await(control.StateRunning)
			v.booted()
			begin := time.Now()
			if tt.act != nil {
				tt.act(v, running.QEMUPID)
			}
			end := v.ends(tt.reason)
			if took := time.Since(begin); took > tt.atMost || (tt.reason == control.ReasonGracePeriodOver && took < time.Duration(tt.grace)*time.Second) {
				t.Errorf("took %s, grace %d s, at most %s", took, tt.grace, tt.atMost)
			}
			if !strings.Contains(end.Message+end.Stderr, tt.says) {
				t.Errorf("end %+v does not say %q", end, tt.says)
			}
			if !gone(running.QEMUPID) {
				t.Error("QEMU is still there")
			}
		})
	}
}

// TestNeverStarts: whatever keeps the guest from running is said.
func TestNeverStarts(t *testing.T) {
	tests := map[string]struct {
		act    func(v *vm)
		reason control.Reason
		says   string
	}{
		"asked to stop while waiting": {func(v *vm) { v.signals <- syscall.SIGTERM }, control.ReasonNeverStarted, ""},
		"rejected": {func(v *vm) {
			v.call(control.CommandReject, control.Termination{Reason: "Lie", Message: "spec.x: no"}, nil)
		}, control.ReasonStartFailed, "spec.x: no"},
		"no such machine type": {func(v *vm) {
			m := v.machine("polite")
			m.Type = "pc-q35-99.9"
			v.start(m, 1)
		}, control.ReasonStartFailed, "unsupported machine type"},
		"disk is missing": {func(v *vm) {
			m := v.machine("polite")
			os.Remove(m.Disks[0].Image.Path)
			v.start(m, 1)
		}, control.ReasonStartFailed, "No such file"},
		"no place for the overlay": {func(v *vm) {
			m := v.machine("polite")
			m.Disks[0].Overlay.Path = "/nowhere/overlay"
			v.start(m, 1)
		}, control.ReasonStartFailed, "image of disk root"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := launch(t)
			tt.act(v)
			if end := v.ends(tt.reason); end.Succeeded() || !strings.Contains(end.Message+end.Stderr, tt.says) {
				t.Errorf("end %+v does not say %q", end, tt.says)
			}
		})
	}
}

// TestHandlerRestarts: the VM does not notice, and the next handler learns all.
func TestHandlerRestarts(t *testing.T) {
	v := launch(t)
	v.start(v.machine("polite"), 20)
	running := v.await(control.StateRunning)
	for range 3 {
		v.client.Close()
		v.accept()
		if toJSON(t, v.hello.State) != toJSON(t, running) {
			t.Errorf("hello says\n%s, want\n%s", toJSON(t, v.hello.State), toJSON(t, running))
		}
	}
	if err := v.call(control.CommandStart, control.StartRequest{Machine: v.machine("polite")}, nil); err == nil || !strings.Contains(err.Error(), "running") {
		t.Errorf("a second start: %v", err)
	}
	v.booted()
	v.signals <- syscall.SIGTERM
	v.ends(control.ReasonShutdown)
}

func TestStartNeedsItsFiles(t *testing.T) {
	v := launch(t)
	m := v.machine("polite")
	m.NICs = []qemuargs.NIC{{Name: "default", Driver: "virtio-net-pci", Queues: 1}}
	if err := v.call(control.CommandStart, control.StartRequest{Machine: m}, nil); err == nil || !strings.Contains(err.Error(), `without the file "tap/default/0"`) {
		t.Errorf("start without a tap: %v", err)
	}
	if err := v.call("no-such-command", nil, nil); err == nil {
		t.Error("an unknown command was answered")
	}
}

func TestInspect(t *testing.T) {
	v := launch(t)
	disks := filepath.Join(v.config.Images, "good", "disk")
	if err := os.MkdirAll(disks, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(disks, "d.img"), bootSector("polite"), 0o600); err != nil {
		t.Fatal(err)
	}
	var reply control.InspectReply
	request := control.InspectRequest{ContainerDisks: []control.ContainerDisk{{Volume: "good"}, {Volume: "gone"}, {Volume: "../" + filepath.Base(v.config.Images)}}}
	if err := v.call(control.CommandInspect, request, &reply); err != nil || len(reply.ContainerDisks) != 3 {
		t.Fatalf("%v, %+v", err, reply)
	}
	if d := reply.ContainerDisks[0]; d.Error != "" || d.Format != qemuargs.Raw || d.VirtualSize != 512 || d.Path != filepath.Join(disks, "d.img") {
		t.Errorf("good disk: %+v", d)
	}
	for _, d := range reply.ContainerDisks[1:] {
		if d.Error == "" {
			t.Errorf("no error: %+v", d)
		}
	}
}

// TestConsole: a second console takes the place of the first, and the guest's
// input and output go on.
func TestConsole(t *testing.T) {
	v := launch(t)
	v.start(v.machine("polite"), 20)
	v.await(control.StateRunning)
	attach := func() net.Conn {
		conn, err := net.Dial("unix", v.config.ConsoleSocket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(patience))
		return conn
	}
	first := attach()
	if _, err := first.Write([]byte("typed")); err != nil {
		t.Fatal(err)
	}
	v.booted()
	second := attach()
	// A reset, if the launcher had not read all of what was typed (unix(7)).
	if _, err := io.Copy(io.Discard, first); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the first console was not ended: %v", err)
	}
	v.signals <- syscall.SIGTERM
	output, err := io.ReadAll(second)
	if err != nil || !bytes.Contains(output, []byte("guest: bye")) {
		t.Errorf("second console: %v, %q", err, output)
	}
	v.ends(control.ReasonShutdown)
}
