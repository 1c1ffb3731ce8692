package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// FuzzClient plays a launcher whose guest broke out: whatever it sends, the
// handler's end of the connection ends with it, no call hangs, and no file
// stays open.
func FuzzClient(f *testing.F) {
	for _, s := range []string{"", `{"event":"hello","data":{"version":1},"files":["netns"]}` + "\n", `{"id":1,"return":{"state":"running"}}` + "\n",
		`{"id":1,"error":{"desc":"no"}}` + "\n", `{"execute":"shutdown","id":1}` + "\n", `{"event":"state","data":{}}` + "\n" + `{"event":"state"`,
		`{"id":1,"return":null}` + "\n" + `{"id":1,"return":{}}` + "\n", "\x00\n\n{}\n"} {
		f.Add([]byte(s), uint8(1))
	}
	f.Fuzz(func(t *testing.T, stream []byte, files uint8) {
		before := openFiles(t)
		a, b := socketpair(t)
		go func() {
			rights := make([]int, files%8) // standard input, whatever it is
			a.WriteMsgUnix(append([]byte(" "), stream...), unix.UnixRights(rights...), nil)
			a.CloseWrite()
			io.Copy(io.Discard, a)
		}()
		events := 0
		closer := &Closer{}
		c := NewClient(NewConn(b), Limits{Closer: closer}, func(m *Message) {
			events++
			m.Close()
		})
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		var state StateReport
		err := c.Call(ctx, CommandQueryState, nil, &state)
		<-c.Done()
		c.Close()
		a.Close()
		for !closer.Idle() {
			runtime.Gosched()
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("call: %v", err)
		}
		if events > bytes.Count(stream, []byte("\n")) {
			t.Fatalf("%d events of %q", events, stream)
		}
		// The two ends are closed by now; the copying goroutine's may be a moment late.
		if after := openFiles(t); after > before+2 {
			t.Fatalf("%d files open, %d before", after, before)
		}
	})
}

// TestEndlessMessage: of a gigabyte without an end of line, a message's worth
// is held, and the connection closed.
func TestEndlessMessage(t *testing.T) {
	a, b := socketpair(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c := NewClient(NewConn(b), Limits{}, func(m *Message) { m.Close() })
	chunk, sent := bytes.Repeat([]byte("x"), 1<<20), 0
	for sent < 1<<30 {
		n, err := a.Write(chunk)
		sent += n
		if err != nil {
			break
		}
	}
	<-c.Done()
	runtime.ReadMemStats(&after)
	if err := c.Err(); !errors.Is(err, ErrProtocol) || sent > 4*MaxMessageBytes {
		t.Errorf("ended after %d bytes with %v", sent, err)
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 16*MaxMessageBytes {
		t.Errorf("%d bytes were allocated for a message of at most %d", allocated, MaxMessageBytes)
	}
}
