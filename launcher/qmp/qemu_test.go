package qmp

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	monitor "github.com/digitalocean/go-qemu/qmp"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

type event = monitor.Event

// qemu starts a QEMU that has not let its guest run.
func qemu(t *testing.T) *Client {
	t.Helper()
	path, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatal("qemu-system-x86_64 is missing: install Debian's qemu-system-x86")
	}
	ours, theirs := testkit.SocketPair(t)
	file, err := theirs.File()
	if err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	cmd := exec.Command(path, "-machine", "q35,accel=tcg", "-S", "-nodefaults", "-no-user-config", "-display", "none",
		"-chardev", "socket,id=mon,fd=3,server=off", "-mon", "chardev=mon,mode=control")
	cmd.ExtraFiles, cmd.Stderr = []*os.File{file}, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	file.Close()
	c := New(ours, Options{})
	t.Cleanup(func() { c.Close(); cmd.Process.Kill(); cmd.Wait() })
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRealQEMU(t *testing.T) {
	c, ctx := qemu(t), t.Context()
	events, err := c.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := c.QueryVersion(ctx); err != nil || v != c.Version() || v.QEMU.Major < 7 {
		t.Errorf("version %v, greeting %v, error %v", v, c.Version(), err)
	}
	if s, err := c.QueryStatus(ctx); err != nil || s != (Status{"prelaunch", false}) {
		t.Errorf("status %+v, error %v", s, err)
	}
	if cpus, err := c.QueryCPUsFast(ctx); err != nil || len(cpus) != 1 || cpus[0].ThreadID == 0 || cpus[0].Target != "x86_64" {
		t.Errorf("CPUs %+v, error %v", cpus, err)
	}
	var schema json.RawMessage
	if err := c.Execute(ctx, "query-qmp-schema", nil, &schema); err != nil || len(schema) < 100<<10 {
		t.Errorf("schema of %d bytes, error %v", len(schema), err)
	}
	if out, err := c.Run([]byte(`{"execute": "query-name", "id": "x"}`)); err != nil || string(out) != `{"id":"x","return":{}}` {
		t.Errorf("run: %s, %v", out, err)
	}
	err = c.Execute(ctx, "no-such-command", nil, nil)
	if e := new(Error); !errors.As(err, &e) || e.Class != "CommandNotFound" {
		t.Errorf("unknown command: %v", err)
	}
	if err := c.Cont(ctx); err != nil {
		t.Error(err)
	}
	if err := c.SystemPowerdown(ctx); err != nil {
		t.Error(err)
	}
	if err := c.Quit(ctx); err != nil {
		t.Error(err)
	}
	var shutdown *Shutdown
	names := []string{}
	for e := range events { // closed by the end of QEMU
		names = append(names, e.Event)
		if e.Event == eventShutdown {
			s := ParseShutdown(e)
			shutdown = &s
		}
	}
	if shutdown == nil || *shutdown != (Shutdown{false, "host-qmp-quit"}) || names[0] != "RESUME" {
		t.Errorf("events %q, shutdown %+v", names, shutdown)
	}
	if err := c.Cont(ctx); !errors.Is(err, ErrClosed) || !errors.Is(c.Err(), ErrClosed) {
		t.Errorf("after the end: %v, %v", err, c.Err())
	}
}

func TestQEMUTakesFiles(t *testing.T) {
	c := qemu(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			var added struct {
				Set int `json:"fdset-id"`
			}
			if err := c.Execute(t.Context(), "add-fd", map[string]any{"fdset-id": i}, &added, f); err != nil || added.Set != i {
				t.Errorf("add-fd %d: %+v, %v", i, added, err)
			}
			name := map[string]string{"fdname": fmt.Sprint("fd", i)}
			if err := c.Execute(t.Context(), "getfd", name, nil, f); err != nil {
				t.Error(err)
			}
			if err := c.Execute(t.Context(), "closefd", name, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := c.Execute(t.Context(), "getfd", map[string]string{"fdname": "none"}, nil); !errors.As(err, new(*Error)) {
		t.Errorf("getfd without a file: %v", err)
	}
	// A file that cannot be sent does not hurt the connection.
	f.Close()
	if err := c.Execute(t.Context(), "getfd", map[string]string{"fdname": "x"}, nil, f); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed file: %v", err)
	}
	if _, err := c.QueryStatus(t.Context()); err != nil {
		t.Error(err)
	}
}
