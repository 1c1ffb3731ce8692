package serial

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// TestLogIsBounded: what goes to the pod's log is bounded, and so is what the
// launcher itself says there about what it left out.
func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	logged, warnings := testkit.NewTranscript(t, "the log"), testkit.NewTranscript(t, "the warnings")
	guest, s, _ := newPort(t, logged, slog.New(slog.NewJSONHandler(warnings, nil)))
	begin := time.Now()
	most := func() int { return LogBurst + int((time.Since(begin).Seconds()+1)*LogBytesPerSecond) }
	for total := 0; total < most()+(64<<10) || time.Since(begin) < 3*time.Second; total += 16 {
		// As a guest writes: little at a time.
		if _, err := io.WriteString(guest, "0123456789abcde\n"); err != nil {
			t.Fatal(err)
		}
	}
	guest.Close()
	s.Close()
	took := time.Since(begin)
	if n, most := len(logged.String()), most(); n < LogBurst/2 || n > most {
		t.Errorf("logged %d bytes within %s, want at most %d", n, took, most)
	}
	if n := strings.Count(warnings.String(), "left out"); n == 0 || n > int(took.Seconds()+1) {
		t.Errorf("%d lines within %s about what was left out, want at most one a second: they go to the same log. The last:\n%s", n, took, warnings.String()[max(0, len(warnings.String())-300):])
	}
}

// TestLastWordsReachLogAndConsole: what a guest writes right before its end, a kernel's panic
// for one, reaches log and console.
func TestLastWordsReachLogAndConsole(t *testing.T) {
	t.Parallel()
	const words = "Kernel panic - not syncing"
	for range 20 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		guest, s, socket := newPort(t, w, slog.New(slog.DiscardHandler))
		console, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		waitAttached(t, s)
		io.WriteString(guest, words)
		guest.Close()
		s.Close()
		w.Close()
		logged, err := io.ReadAll(r)
		if string(logged) != words || err != nil {
			t.Errorf("log %q, error %v", logged, err)
		}
		console.SetReadDeadline(time.Now().Add(testkit.Patience))
		shown, err := io.ReadAll(console)
		if string(shown) != words || err != nil {
			t.Fatalf("console %q, error %v", shown, err)
		}
		console.Close()
		r.Close()
	}
}

// newPort returns a serial port without QEMU.
func newPort(t *testing.T, stdout io.Writer, log *slog.Logger) (guest *net.UnixConn, s *Port, socket string) {
	t.Helper()
	port, guest := testkit.SocketPair(t)
	dir, err := os.MkdirTemp("", "launcher")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = dir + "/console.sock"
	s, err = New(port, socket, stdout, log)
	if err != nil {
		t.Fatal(err)
	}
	return guest, s, socket
}

func waitAttached(t *testing.T, s *Port) {
	t.Helper()
	testkit.Until(t, "a console that is attached", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.console != nil })
}

// TestConsolesOfADeafGuest: a guest that reads nothing holds what one console
// types, and nobody who came before it.
func TestConsolesOfADeafGuest(t *testing.T) {
	t.Parallel()
	guest, s, socket := newPort(t, io.Discard, slog.New(slog.DiscardHandler))
	typist := func() chan struct{} {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.typing
	}
	before := typist()
	for i := range 5 {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go conn.Write(make([]byte, 4<<20)) // more than any buffer on the way
		testkit.Until(t, fmt.Sprintf("console %d", i), func() bool { return typist() != before })
		testkit.Receive(t, before, fmt.Sprintf("the end of who typed before console %d", i))
		before = typist()
	}
	last, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	if _, err := last.Write([]byte("the last")); err != nil {
		t.Fatal(err)
	}
	guest.SetReadDeadline(time.Now().Add(testkit.Patience))
	var read []byte
	for chunk := make([]byte, 64<<10); !bytes.HasSuffix(read, []byte("the last")); {
		n, err := guest.Read(chunk)
		if err != nil {
			t.Fatalf("the guest read %d bytes, and not what was typed last: %v", len(read), err)
		}
		read = append(read, chunk[:n]...)
	}
	guest.Close()
	s.Close()
}

// TestManyConsoles attaches from everywhere at once: the last one stays.
func TestManyConsoles(t *testing.T) {
	t.Parallel()
	guest, s, socket := newPort(t, io.Discard, slog.New(slog.DiscardHandler))
	go io.Copy(guest, guest)
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			conn, err := net.Dial("unix", socket)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			conn.Write([]byte("x"))
			conn.SetReadDeadline(time.Now().Add(testkit.Patience))
			conn.Read(make([]byte, 1))
		})
	}
	wait.Wait()
	guest.Close()
	s.Close()
}
