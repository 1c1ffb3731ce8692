package launcher

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// console is a test that is attached to the guest's serial port.
type attached struct {
	*transcript
	conn  net.Conn
	ended chan struct{}
}

// dial attaches and reads nothing.
func dial(v *vm) *net.UnixConn {
	v.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: v.ConsoleSocket, Net: "unix"})
	v.must(err)
	v.Cleanup(func() { conn.Close() })
	return conn
}

func attach(v *vm) *attached {
	v.Helper()
	return attachedTo(v, dial(v))
}

func attachedTo(v *vm, conn net.Conn) *attached {
	v.Helper()
	v.Cleanup(func() { conn.Close() })
	a := &attached{transcript: newTranscript(v.T, "the console"), conn: conn, ended: make(chan struct{})}
	go func() { defer close(a.ended); io.Copy(a.transcript, a.conn) }()
	return a
}

func (a *attached) say(text string) {
	a.t.Helper()
	a.conn.SetWriteDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(a.conn, text); err != nil {
		a.t.Fatalf("write to the console: %v", err)
	}
}

func TestConsole(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.boot()
	first := attach(v)
	first.say("hello, guest")
	first.expect("hello, guest")
	v.stdout.expect("hello, guest")

	second := attach(v)
	receive(t, first.ended, "the end of the console that another one replaces")
	second.say("second")
	second.expect("second")
	if strings.Contains(first.text(), "second") {
		t.Errorf("the replaced console got %q", first.text())
	}

	second.conn.Close()
	third := attach(v)
	third.say("third")
	third.expect("third")
	third.say("P")
	receive(t, third.ended, "the console's end with the VM")
	v.expectEnd(control.ReasonGuestShutdown, "")
	if _, err := os.Stat(v.ConsoleSocket); err == nil {
		t.Error("the console's socket is still there")
	}
}

// TestLogIsBounded: what goes to the pod's log is bounded, and so is what the
// launcher itself says there about what it left out.
func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	logged, warnings := newTranscript(t, "the guest's output"), newTranscript(t, "the log")
	guest, s, _ := newSerialPair(t, logged, slog.New(slog.NewJSONHandler(warnings, nil)))
	begin := time.Now()
	for total := 0; total < logBurst+(64<<10) || time.Since(begin) < 3*time.Second; total += 16 {
		// As a guest writes: little at a time.
		if _, err := guest.WriteString("0123456789abcde\n"); err != nil {
			t.Fatal(err)
		}
	}
	guest.Close()
	s.Close()
	took := time.Since(begin)
	if n, most := len(logged.text()), logBurst+int((took.Seconds()+1)*logBytesPerSecond); n < logBurst/2 || n > most {
		t.Errorf("logged %d bytes within %s, want at most %d", n, took, most)
	}
	if n := strings.Count(warnings.text(), "left out"); n == 0 || n > int(took.Seconds()+1) {
		t.Errorf("%d lines within %s about what was left out, want at most one a second: they go to the same log. The last:\n%s", n, took, last(warnings.text(), 300))
	}
}

// TestDeafGuest: input that a guest does not read is a console's own problem.
func TestDeafGuest(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.request.GraceSeconds = 1
	v.boot()
	first := attach(v)
	first.say("D")
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		first.conn.Write(bytes.Repeat([]byte("x"), 8<<20))
	}()
	attach(v)
	receive(t, sent, "the end of the input of a replaced console")
	v.must(v.call(control.CommandShutdown, nil, nil))
	v.expectEnd(control.ReasonGracePeriodOver, "")
}

// TestLastWords: what a guest writes right before its end, a kernel's panic
// for one, reaches log and console.
func TestLastWords(t *testing.T) {
	t.Parallel()
	const words = "Kernel panic - not syncing"
	for range 20 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		guest, s, socket := newSerialPair(t, w, slog.New(slog.DiscardHandler))
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
		console.SetReadDeadline(time.Now().Add(patience))
		shown, err := io.ReadAll(console)
		if string(shown) != words || err != nil {
			t.Fatalf("console %q, error %v", shown, err)
		}
		console.Close()
		r.Close()
	}
}

// newSerialPair is a serial port without QEMU.
func newSerialPair(t *testing.T, stdout io.Writer, log *slog.Logger) (guest *os.File, s *serial, socket string) {
	t.Helper()
	port, guest, err := socketPair("serial")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "launcher")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = dir + "/console.sock"
	s, err = newSerial(port, socket, stdout, log)
	if err != nil {
		t.Fatal(err)
	}
	return guest, s, socket
}

func waitAttached(t *testing.T, s *serial) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		s.mu.Lock()
		attached := s.console != nil
		s.mu.Unlock()
		if attached {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("not attached")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestConsolesOfADeafGuest: a guest that reads nothing holds what one console
// types, and nobody who came before it.
func TestConsolesOfADeafGuest(t *testing.T) {
	t.Parallel()
	guest, s, socket := newSerialPair(t, io.Discard, slog.New(slog.DiscardHandler))
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
		for deadline := time.Now().Add(patience); typist() == before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("console %d is not attached", i)
			}
		}
		select {
		case <-before:
		case <-time.After(patience):
			t.Fatalf("whoever typed before console %d still waits for the guest", i)
		}
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
	guest.SetReadDeadline(time.Now().Add(patience))
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
	guest, s, socket := newSerialPair(t, io.Discard, slog.New(slog.DiscardHandler))
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
			conn.SetReadDeadline(time.Now().Add(patience))
			conn.Read(make([]byte, 1))
		})
	}
	wait.Wait()
	guest.Close()
	s.Close()
}
