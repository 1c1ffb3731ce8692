package sidecar

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// served is a file system that is served, by a shell in virtiofsd's place.
type served struct {
	*testing.T
	dir    string
	cancel context.CancelFunc
	result chan error
}

// serveBy serves a file system in a folder. The script says "runs" in a file of this name when it runs.
func serveBy(t *testing.T, dir, script string) *served {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &served{T: t, dir: dir, cancel: cancel, result: make(chan error, 1)}
	server := Server{Program: "/bin/sh", Args: []string{"-c", "cd '" + dir + "'; echo $$ >new; mv new runs; " + script}, Socket: filepath.Join(dir, "socket"), Output: os.Stderr}
	go func() { s.result <- server.Serve(ctx) }()
	t.Cleanup(cancel)
	return s
}

// pid returns the number of the program's process, which runs.
func (s *served) pid() (pid string) {
	s.Helper()
	testkit.Until(s.T, "the program's start", func() bool {
		text, _ := os.ReadFile(filepath.Join(s.dir, "runs"))
		pid = strings.TrimSpace(string(text))
		return pid != ""
	})
	return pid
}

// gone waits until the program has ended.
func (s *served) gone(pid string) {
	s.Helper()
	testkit.Until(s.T, "end of the program", func() bool { return errors.Is(unix.Access("/proc/"+pid, unix.F_OK), unix.ENOENT) })
}

// qemu connects as QEMU's lifeline does.
func (s *served) qemu() *os.File {
	s.Helper()
	conn, err := Connect(within(s.T, testkit.Patience), layout.Lifeline(filepath.Join(s.dir, "socket")))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	testkit.Until(s.T, "note that there is a guest", func() bool { return unix.Access(filepath.Join(s.dir, "served"), unix.F_OK) == nil })
	return conn
}

func (s *served) returns() error {
	s.Helper()
	return testkit.Receive(s.T, s.result, "Serve's end")
}

// goesOn checks that Serve waits, so that the kubelet does not start the container anew.
func (s *served) goesOn() {
	s.Helper()
	select {
	case err := <-s.result:
		s.Fatalf("Serve has returned: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
}

// TestHangingProgramEndsAfterItsQEMU: a program that hangs ends soon after its QEMU, and without QEMU it ends when it
// is asked to, although it ignores SIGTERM.
func TestHangingProgramEndsAfterItsQEMU(t *testing.T) {
	t.Parallel()
	const hangs = "trap '' TERM INT; exec sleep 1000"
	t.Run("after QEMU", func(t *testing.T) {
		t.Parallel()
		s := serveBy(t, t.TempDir(), hangs)
		pid := s.pid()
		s.qemu().Close()
		s.gone(pid)
		s.goesOn()
		s.cancel()
		if err := s.returns(); err != nil {
			t.Error(err)
		}
	})
	t.Run("asked to end", func(t *testing.T) {
		t.Parallel()
		s := serveBy(t, t.TempDir(), hangs)
		pid := s.pid()
		s.qemu()
		s.cancel() // the program itself would go on for longer than returns waits
		if err := s.returns(); err != nil {
			t.Error(err)
		}
		s.gone(pid)
	})
}

// TestProgramThatEndsBeforeQEMUIsLost: a program that ends before QEMU has lost what the program served, and no other
// program is started. Where QEMU ends too, nothing is lost.
func TestProgramThatEndsBeforeQEMUIsLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, want string }{
		"well":   {"until [ -e end ]; do sleep 0.01; done", "exit status 0"},
		"failed": {"until [ -e end ]; do sleep 0.01; done; exit 7", "exit status 7"},
		"killed": {"until [ -e end ]; do sleep 0.01; done; kill -KILL $$", "signal: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serveBy(t, t.TempDir(), c.script)
			s.pid()
			qemu := s.qemu()
			s.must(os.WriteFile(filepath.Join(s.dir, "end"), nil, 0o600))
			if err := s.returns(); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %v with %q", err, ErrLost, c.want)
			}
			qemu.Close()
			s.must(os.Remove(filepath.Join(s.dir, "runs")))
			if err := serveBy(t, s.dir, c.script).returns(); !errors.Is(err, ErrLost) {
				t.Errorf("the next attempt: %v, want %v", err, ErrLost)
			}
			if _, err := os.Stat(filepath.Join(s.dir, "runs")); err == nil {
				t.Error("the next attempt has started a program")
			}
		})
	}
	t.Run("QEMU ends too", func(t *testing.T) {
		t.Parallel()
		s := serveBy(t, t.TempDir(), "until [ -e end ]; do sleep 0.01; done")
		pid := s.pid()
		qemu := s.qemu()
		s.must(os.WriteFile(filepath.Join(s.dir, "end"), nil, 0o600))
		s.gone(pid)
		qemu.Close()
		s.goesOn()
		s.cancel()
		if err := s.returns(); err != nil {
			t.Error(err)
		}
	})
}

// TestProgramIsServedAgainBeforeQEMU: a program that ends before there is a QEMU loses nothing. What it has left behind
// does not disturb the next.
func TestProgramIsServedAgainBeforeQEMU(t *testing.T) {
	t.Parallel()
	s := serveBy(t, t.TempDir(), "exit 5")
	if err := s.returns(); err == nil || errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "exit status 5") {
		t.Errorf("%v, want exit status 5", err)
	}
	s.must(os.Remove(filepath.Join(s.dir, "runs")), os.WriteFile(layout.Lifeline(filepath.Join(s.dir, "socket")), nil, 0o600))
	s = serveBy(t, s.dir, "exec sleep 1000")
	s.pid()
	s.qemu()
	s.goesOn()
}

func (s *served) must(errs ...error) {
	s.Helper()
	if err := errors.Join(errs...); err != nil {
		s.Fatal(err)
	}
}
