package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/imagefile"
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
	var fails atomic.Bool
	end := handOut(t, socket, func() (imagefile.File, error) {
		if fails.Load() {
			return 0, errors.New("there is no /disk: " + strings.Repeat("x", 10_000))
		}
		return opens(path)
	})
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
		!strings.Contains(err.Error(), "there is no /disk") || len(err.Error()) > 2*imagefile.MaxAnswer {
		t.Errorf("%v (%v)", f, err)
	}
	end()
	for _, f := range files {
		if got, err := io.ReadAll(f); err != nil || string(got) != "content" {
			t.Errorf("%q (%v)", got, err)
		}
	}
	// A container that is restarted hands out again.
	end = handOut(t, socket, func() (imagefile.File, error) { return opens(path) })
	f, err := Receive(within(t, testkit.Patience), socket)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	end()
}

// opens opens a file as a container with an image does.
func opens(path string) (imagefile.File, error) {
	f, _, err := imagefile.Open(filepath.Dir(path), filepath.Base(path))
	return f, err
}

// handOut hands out at a socket until the end that it returns.
func handOut(t *testing.T, socket string, open func() (imagefile.File, error)) (end func()) {
	t.Helper()
	server, err := imagefile.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.HandOut(open) }()
	return func() {
		server.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
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
		"no file":              {"f", nil, "no file"},
		"an error and one":     {"nno", []int{read}, "no such disk: no"},
		"another answer":       {"hello", []int{read}, "is known"},
		"two files":            {"f", []int{read, read}, "more than one"},
		"many files":           {"f", []int{read, read, read, read, read, read, read, read}, "more than one"},
		"one that is writable": {"f", []int{opened(path, unix.O_RDWR)}, "reading alone"},
		"only writable":        {"f", []int{opened(path, unix.O_WRONLY)}, "reading alone"},
		"a path":               {"f", []int{opened(path, unix.O_PATH)}, "reading alone"},
		"a folder":             {"f", []int{opened(filepath.Dir(path), unix.O_RDONLY)}, "not a regular file"},
		"a FIFO":               {"f", []int{opened(fifo, unix.O_RDONLY|unix.O_NONBLOCK)}, "not a regular file"},
		"a device":             {"f", []int{opened("/dev/zero", unix.O_RDONLY)}, "not a regular file"},
		"without end":          {strings.Repeat("x", imagefile.MaxAnswer), []int{read}, "is known"},
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

// TestReceiveTriesAgain: a container that is restarted, ends a connection, or has no room for an open file now, hands
// out the file a moment later. One that never does has its last error told, and not that its image has no disk.
func TestReceiveTriesAgain(t *testing.T) {
	path := written(t, "content")
	fails := func(times int, err error) func() (imagefile.File, error) {
		return func() (imagefile.File, error) {
			if times--; times >= 0 {
				return 0, fmt.Errorf("open /disk: %w", err)
			}
			return opens(path)
		}
	}
	ends := func(l net.Listener, times int) {
		defer l.Close()
		for range times {
			if conn, err := l.Accept(); err == nil {
				conn.Close()
			}
		}
	}
	for name, c := range map[string]struct {
		ends int // connections that end without an answer
		open func() (imagefile.File, error)
		says string // nothing: it hands out
	}{
		"a connection that ends":  {ends: 3, open: fails(0, nil)},
		"no room for files":       {open: fails(2, unix.EMFILE)},
		"no memory":               {open: fails(2, unix.ENOMEM)},
		"no room for files, ever": {open: fails(1<<30, unix.EMFILE), says: "too many open files"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "image.sock")
			before := listen(t, socket)
			ctx, cancel := context.WithCancel(within(t, testkit.Patience))
			defer cancel()
			received := make(chan struct{})
			opened := 0
			open := func() (imagefile.File, error) {
				// The third question has no answer before its time is over.
				if opened++; opened > 2 && c.says != "" {
					cancel()
					<-received
				}
				return c.open()
			}
			listens := make(chan func(), 1)
			go func() {
				ends(before, c.ends)
				listens <- handOut(t, socket, open)
			}()
			f, err := Receive(ctx, socket)
			close(received)
			switch {
			case c.says == "" && err != nil:
				t.Error(err)
			case c.says != "" && (err == nil || errors.Is(err, ErrNotHandedOut) || !strings.Contains(err.Error(), c.says)):
				t.Errorf("%v, want %q", err, c.says)
			}
			f.Close()
			before.Close()
			(<-listens)()
		})
	}
}

// TestHandOutToWhoDoesNotRead: clients that connect and take nothing hold up no other.
func TestHandOutToWhoDoesNotRead(t *testing.T) {
	path, socket := written(t, "content"), filepath.Join(t.TempDir(), "image.sock")
	end := handOut(t, socket, func() (imagefile.File, error) { return opens(path) })
	defer end()
	const clients = 50
	for range clients {
		conn, err := Connect(within(t, testkit.Patience), socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	// If the container waited for each of them, this one would have to wait for longer.
	f, err := Receive(within(t, clients/2*imagefile.HandPatience), socket)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
