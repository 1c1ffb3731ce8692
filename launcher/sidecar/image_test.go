package sidecar

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestHandOut: each connection gets an open file of its own, which is the one that was opened for it, and outlives the
// program. A file that cannot be opened is told with the reason.
func TestHandOut(t *testing.T) {
	path, socket := written(t, "content"), filepath.Join(t.TempDir(), "image.sock")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var fails atomic.Bool
	done := make(chan error, 1)
	go func() {
		done <- HandOut(ctx, socket, func() (*os.File, error) {
			if fails.Load() {
				return nil, errors.New("there is no /disk: " + strings.Repeat("x", 10_000))
			}
			return os.Open(path)
		})
	}()
	var files []*os.File
	for range 2 {
		f, err := Receive(within(t, testkit.Patience), socket)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	fails.Store(true)
	if f, err := Receive(within(t, testkit.Patience), socket); f != nil || !errors.Is(err, ErrNotHandedOut) ||
		!strings.Contains(err.Error(), "there is no /disk") || len(err.Error()) > maxAnswer {
		t.Errorf("%v (%v)", f, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, f := range files {
		if got, err := io.ReadAll(f); err != nil || string(got) != "content" {
			t.Errorf("%q (%v)", got, err)
		}
	}
	// A container that is restarted hands out again.
	again, stop := context.WithCancel(t.Context())
	go func() { done <- HandOut(again, socket, func() (*os.File, error) { return os.Open(path) }) }()
	f, err := Receive(within(t, testkit.Patience), socket)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestHostileHandOut: whoever has the container hands over something else, too much, or nothing. The launcher takes
// nothing that could be written, that is no regular file, or that it would wait for, and keeps no file open.
func TestHostileHandOut(t *testing.T) {
	path := written(t, "content")
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	opened := func(path string, flags int) int {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	read := opened(path, unix.O_RDONLY)
	for name, c := range map[string]struct {
		text string
		fds  []int
		says string
	}{
		"nothing":              {"", nil, "invalid character"},
		"no file":              {"{}", nil, "no file"},
		"an error and one":     {`{"error":"no"}`, []int{read}, "no such disk: no"},
		"no JSON":              {"hello", []int{read}, "invalid character"},
		"two files":            {"{}", []int{read, read}, "more than one"},
		"many files":           {"{}", []int{read, read, read, read, read, read, read, read}, "more than one"},
		"one that is writable": {"{}", []int{opened(path, unix.O_RDWR)}, "reading alone"},
		"only writable":        {"{}", []int{opened(path, unix.O_WRONLY)}, "reading alone"},
		"a path":               {"{}", []int{opened(path, unix.O_PATH)}, "reading alone"},
		"a folder":             {"{}", []int{opened(filepath.Dir(path), unix.O_RDONLY)}, "not a regular file"},
		"a FIFO":               {"{}", []int{opened(fifo, unix.O_RDONLY|unix.O_NONBLOCK)}, "not a regular file"},
		"a device":             {"{}", []int{opened("/dev/zero", unix.O_RDONLY)}, "not a regular file"},
		"without end":          {strings.Repeat(" ", maxAnswer), []int{read}, "JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "image.sock")
			l := listen(t, socket)
			answered := make(chan error, 1)
			go func() {
				conn, err := l.AcceptUnix()
				if err == nil {
					_, _, err = conn.WriteMsgUnix([]byte(c.text), unix.UnixRights(c.fds...), nil)
					conn.Close()
				}
				answered <- err
			}()
			before := openFiles(t)
			f, err := Receive(within(t, testkit.Patience), socket)
			if f != nil || err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v (%v), want %q", f, err, c.says)
			}
			<-answered
			if after := openFiles(t); after > before {
				t.Errorf("%d files are open, and %d were", after, before)
			}
		})
	}
	t.Run("never", func(t *testing.T) {
		socket := filepath.Join(t.TempDir(), "image.sock")
		listen(t, socket)
		if f, err := Receive(within(t, 100*1e6), socket); f != nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v (%v)", f, err)
		}
	})
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestHandOutToWhoDoesNotRead: a client that connects and takes nothing holds up no other.
func TestHandOutToWhoDoesNotRead(t *testing.T) {
	path, socket := written(t, "content"), filepath.Join(t.TempDir(), "image.sock")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- HandOut(ctx, socket, func() (*os.File, error) { return os.Open(path) }) }()
	for range 50 {
		conn, err := Connect(within(t, testkit.Patience), socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	f, err := Receive(within(t, testkit.Patience), socket)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	cancel()
	if err := <-done; err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
