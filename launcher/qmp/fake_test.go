package qmp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

const greetingLine = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "p"}, "capabilities": ["oob"]}}`

// fake is the QEMU side.
type fake struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

type got struct {
	Execute string
	ID      uint64
}

func (f *fake) send(format string, args ...any) { fmt.Fprintf(f.conn, format+"\r\n", args...) }

func (f *fake) next() (got, error) {
	line, err := f.in.ReadBytes('\n')
	var g got
	if err == nil {
		err = json.Unmarshal(line, &g)
	}
	return g, err
}

// start returns a connected client; serve then speaks for QEMU.
func start(t *testing.T, opts Options, serve func(*fake)) *Client {
	t.Helper()
	ours, theirs := testkit.SocketPair(t)
	c := New(ours, opts)
	served := make(chan struct{})
	t.Cleanup(func() { c.Close(); theirs.Close(); <-served })
	go func() {
		defer close(served)
		f := &fake{t, theirs, bufio.NewReader(theirs)}
		f.send(greetingLine)
		f.send(`{"event": "NIC_RX_FILTER_CHANGED", "timestamp": {"seconds": 1, "microseconds": 2}}`)
		g, err := f.next()
		if err != nil || g.Execute != "qmp_capabilities" {
			t.Errorf("first command %+v, error %v", g, err)
			return
		}
		f.send(`{"return": {}, "id": %d}`, g.ID)
		serve(f)
	}()
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConnect(t *testing.T) {
	c := start(t, Options{}, func(*fake) {})
	if v := c.Version(); v.String() != "7.2.22" || c.Greeting().Capabilities[0] != "oob" {
		t.Errorf("greeting %+v", c.Greeting())
	}
	events, err := c.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Event != "NIC_RX_FILTER_CHANGED" || e.Timestamp.Microseconds != 2 {
		t.Errorf("event %+v", e)
	}
	if _, err := c.Events(t.Context()); !errors.Is(err, ErrSubscribed) {
		t.Errorf("second reader: %v", err)
	}
}

func TestSilentQEMUTimesOut(t *testing.T) {
	ours, _ := testkit.SocketPair(t)
	c := New(ours, Options{Timeout: 20 * time.Millisecond})
	defer c.Close()
	if err := c.Connect(); !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connect: %v", err)
	}
	// Nobody reads: the write fills the socket and must end as well. On a machine that has much to do, the time is over before the client has
	// written anything. Then the client goes on.
	big := strings.Repeat("x", 1<<20)
	for begin := time.Now(); c.Err() == nil && time.Since(begin) < testkit.Patience; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := c.Execute(ctx, "x", map[string]string{"a": big}, nil); !errors.Is(err, ErrTimeout) {
			t.Errorf("execute: %v", err)
		}
		cancel()
	}
	if err := c.Err(); !errors.Is(err, ErrClosed) {
		t.Errorf("half a command was written, and the client goes on: %v", err)
	}
}

func TestBigReplyAndManyEvents(t *testing.T) {
	big := strings.Repeat("b", 200<<10)
	c := start(t, Options{}, func(f *fake) {
		g, _ := f.next()
		for i := range 1000 {
			f.send(`{"event": "E", "data": {"n": %d}, "timestamp": {}}`, i)
		}
		f.send(`{"return": %q, "id": %d}`, big, g.ID)
		f.next()
	})
	var s string
	if err := c.Execute(t.Context(), "big", nil, &s); err != nil || s != big {
		t.Fatalf("%d bytes, error %v", len(s), err)
	}
	events, _ := c.Events(t.Context())
	<-events
	for i := range 1000 {
		if e := <-events; e.Data["n"] != float64(i) {
			t.Fatalf("event %d is %v", i, e.Data)
		}
	}
}

func TestOverflowKeepsShutdown(t *testing.T) {
	c := start(t, Options{}, func(f *fake) {
		g, _ := f.next()
		f.send(`{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}}`)
		for i := range 3000 {
			f.send(`{"event": "E", "data": {"n": %d}}`, i)
		}
		f.send(`{"return": {}, "id": %d}`, g.ID)
		f.conn.Close()
	})
	if err := c.Cont(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	events, err := c.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s := ParseShutdown(<-events); s != (Shutdown{true, "guest-shutdown"}) {
		t.Errorf("first event %+v", s)
	}
	n := 3000 - (maxEvents - 1)
	for e := range events {
		if e.Data["n"] != float64(n) {
			t.Fatalf("event %v, want %d", e.Data, n)
		}
		n++
	}
	if n != 3000 {
		t.Errorf("the last event was %d", n-1)
	}
}

// lateContext is one whose time is over when done is closed.
type lateContext struct {
	context.Context
	done chan struct{}
}

func (lateContext) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }
func (c lateContext) Done() <-chan struct{}     { return c.done }

func (c lateContext) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestOutOfOrderUnknownAndLate(t *testing.T) {
	over := lateContext{t.Context(), make(chan struct{})}
	c := start(t, Options{}, func(f *fake) {
		late, _ := f.next()
		close(over.done)
		a, _ := f.next()
		b, _ := f.next()
		f.send(`{"return": "stray", "id": 999999}`)
		f.send(`{"return": "stray"}`)
		f.send(`{"return": "stray", "id": "text"}`)
		f.send(`{"return": %q, "id": %d}`, b.Execute, b.ID)
		f.send(`{"return": "late", "id": %d}`, late.ID)
		f.send(`{"return": %q, "id": %d}`, a.Execute, a.ID)
		f.next()
	})
	if err := c.Execute(over, "late", nil, nil); !errors.Is(err, ErrTimeout) {
		t.Fatalf("late: %v", err)
	}
	var wg sync.WaitGroup
	for _, name := range []string{"one", "two"} {
		wg.Go(func() {
			var s string
			if err := c.Execute(t.Context(), name, nil, &s); err != nil || s != name {
				t.Errorf("%s: %q, %v", name, s, err)
			}
		})
	}
	wg.Wait()
}

func TestErrorReply(t *testing.T) {
	c := start(t, Options{}, func(f *fake) {
		for range 2 {
			g, _ := f.next()
			f.send(`{"error": {"class": "DeviceNotFound", "desc": "no x"}, "id": %d}`, g.ID)
		}
		f.next()
	})
	want := Error{"device_del", "DeviceNotFound", "no x"}
	_, runErr := c.Run([]byte(`{"execute": "device_del"}`))
	for _, err := range []error{runErr, c.Execute(t.Context(), "device_del", nil, nil)} {
		if e := new(Error); !errors.As(err, &e) || *e != want {
			t.Errorf("error %v", err)
		}
	}
}

func TestRunKeepsID(t *testing.T) {
	c := start(t, Options{}, func(f *fake) {
		for range 2 {
			g, _ := f.next()
			f.send(`{"return": {"x": 1}, "id": %d}`, g.ID)
		}
		f.next()
	})
	for command, want := range map[string]string{
		`{"execute": "a", "id": {"mine": 1}}`:     `{"id":{"mine":1},"return":{"x":1}}`,
		`{"execute": "a", "arguments": {"b": 2}}`: `{"return":{"x":1}}`,
	} {
		if out, err := c.Run([]byte(command)); err != nil || string(out) != want {
			t.Errorf("%s: %s, %v", command, out, err)
		}
	}
	if _, err := c.Run([]byte(`{`)); err == nil {
		t.Error("half a command was taken")
	}
}

func TestBrokenStreams(t *testing.T) {
	for name, c := range map[string]struct {
		write func(io.Writer)
		check func(error) bool
	}{
		"end":           {func(io.Writer) {}, func(err error) bool { return err == ErrClosed }},
		"end in a line": {func(w io.Writer) { io.WriteString(w, `{"ret`) }, func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
		"garbage":       {func(w io.Writer) { io.WriteString(w, "\xff\x00garbage\n") }, func(err error) bool { return errors.As(err, new(*ProtocolError)) }},
		"no message":    {func(w io.Writer) { io.WriteString(w, "{}\n") }, func(err error) bool { return errors.As(err, new(*ProtocolError)) }},
		"long line":     {func(w io.Writer) { w.Write(make([]byte, maxLine+1)) }, func(err error) bool { return errors.As(err, new(*LineTooLongError)) }},
		"long event":    {func(w io.Writer) { fmt.Fprintf(w, `{"event": "%s"}`+"\n", strings.Repeat("x", maxEvent)) }, func(err error) bool { return errors.As(err, new(*LineTooLongError)) }},
	} {
		t.Run(name, func(t *testing.T) {
			client := start(t, Options{}, func(f *fake) {
				f.next()
				c.write(f.conn)
				f.conn.Close()
			})
			if err := client.Cont(t.Context()); !errors.Is(err, ErrClosed) {
				t.Errorf("command: %v", err)
			}
			<-client.Done()
			if err := client.Err(); !errors.Is(err, ErrClosed) || !c.check(err) {
				t.Errorf("end: %v", err)
			}
			if err := client.Cont(t.Context()); !errors.Is(err, ErrClosed) {
				t.Errorf("command after the end: %v", err)
			}
		})
	}
}

// TestEndlessLine: 100 MB in one line are not held.
func TestEndlessLine(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c := start(t, Options{}, func(f *fake) {
		io.WriteString(f.conn, `{"return": "`)
		for chunk := bytes.Repeat([]byte("x"), 1<<20); ; {
			// It fails once the client has hung up.
			if _, err := f.conn.Write(chunk); err != nil {
				return
			}
		}
	})
	<-c.Done()
	runtime.ReadMemStats(&after)
	// All that was ever allocated: the slice grows by a quarter at a time.
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 10*maxLine {
		t.Errorf("%d bytes were allocated for a line of at most %d", grown, maxLine)
	}
	if err := c.Err(); !errors.As(err, new(*LineTooLongError)) {
		t.Errorf("end: %v", err)
	}
}

// TestWaitingEventsAreBounded: events that nobody reads are held up to a
// number of bytes, whatever their number.
func TestWaitingEventsAreBounded(t *testing.T) {
	q := newEventQueue()
	q.add(event{Event: eventShutdown}, 1000)
	for i := range 100 {
		q.add(event{Event: fmt.Sprint(i)}, maxEvent)
		if q.bytes > maxEventsBytes {
			t.Fatalf("%d bytes wait", q.bytes)
		}
	}
	if first, last := q.events[0], q.events[len(q.events)-1]; first.Event.Event != eventShutdown || last.Event.Event != "99" {
		t.Errorf("from %+v to %+v", first, last)
	}
	for range len(q.events) {
		q.take()
	}
	if q.bytes != 0 {
		t.Errorf("none waits, but %d bytes", q.bytes)
	}
}

func TestConcurrentCommands(t *testing.T) {
	c := start(t, Options{}, func(f *fake) {
		for {
			g, err := f.next()
			if err != nil {
				return
			}
			f.send(`{"event": "E"}`)
			f.send(`{"return": %q, "id": %d}`, g.Execute, g.ID)
		}
	})
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			for j := range 20 {
				var s string
				name := fmt.Sprint(i, "-", j)
				if err := c.Execute(t.Context(), name, nil, &s); err != nil || s != name {
					t.Errorf("%s: %q, %v", name, s, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestUndeliveredEventStays needs the pump to stand in its send, which
// synctest's Wait makes certain.
func TestUndeliveredEventStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newEventQueue()
		for _, name := range []string{"A", "B"} {
			e, _ := parse([]byte(`{"event": "` + name + `"}`))
			q.add(*e.event, 20)
		}
		ctx, cancel := context.WithCancel(t.Context())
		q.subscribe()
		go q.pump(ctx, nil, make(chan event))
		synctest.Wait()
		cancel()
		synctest.Wait()
		for _, want := range []string{"A", "B"} {
			if e, ok, _ := q.take(); !ok || e.Event.Event != want {
				t.Errorf("event %q, want %q", e.Event.Event, want)
			}
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	c := start(t, Options{}, func(f *fake) { f.next(); f.next() })
	events, _ := c.Events(t.Context())
	failed := make(chan error)
	go func() { failed <- c.Cont(t.Context()) }()
	c.Close()
	c.Close()
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("command: %v", err)
	}
	for range events {
	}
	if _, err := c.Events(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("events: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{greetingLine, `{"return": {}, "id": 1}`, `{"error": {"class": "c", "desc": "d"}}`,
		`{"event": "SHUTDOWN", "data": {"guest": 1, "reason": []}}`, `{"return": null}`, `{"QMP": null}`, `[]`, ``, `{"event": "e", "data": 1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := parse(line)
		kinds := 0
		for _, set := range []bool{m.greeting != nil, m.event != nil, m.reply != nil} {
			if set {
				kinds++
			}
		}
		if (err == nil) != (kinds == 1) || kinds > 1 {
			t.Fatalf("%+v, %v", m, err)
		}
		if err != nil && !errors.As(err, new(*ProtocolError)) && !errors.As(err, new(*LineTooLongError)) {
			t.Fatalf("error %T", err)
		}
		if m.event != nil {
			ParseShutdown(*m.event)
		}
		if m.reply != nil {
			if m.reply.failed == nil && m.reply.result == nil {
				t.Fatal("neither result nor error")
			}
			if _, err := withID(m.reply.line, nil); err != nil {
				t.Fatal(err)
			}
		}
	})
}
