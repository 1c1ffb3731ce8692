package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// newClient returns a client, and the other end of its connection.
func newClient(t *testing.T, onEvent func(*Message)) (*Client, *Conn) {
	t.Helper()
	a, b := socketpair(t)
	if onEvent == nil {
		onEvent = func(m *Message) { t.Errorf("unexpected event %+v", m) }
	}
	c := NewClient(NewConn(a), Limits{}, onEvent)
	t.Cleanup(func() { c.Close() })
	return c, NewConn(b)
}

func receive(t *testing.T, c *Conn) *Message {
	t.Helper()
	m, err := c.Receive()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func send(t *testing.T, c *Conn, m Message) {
	t.Helper()
	if err := c.Send(m); err != nil {
		t.Fatal(err)
	}
}

func TestCallAnswers(t *testing.T) {
	tests := []struct {
		name   string
		answer Message
		check  func(got StateReport, err error) bool
	}{
		{"result", Message{Return: json.RawMessage(`{"state":"running"}`)}, func(got StateReport, err error) bool { return err == nil && got.State == StateRunning }},
		{"error", Message{Error: &RemoteError{Description: "no such disk"}}, func(_ StateReport, err error) bool {
			var remote *RemoteError
			return errors.As(err, &remote) && remote.Description == "no such disk" && err.Error() == "query-state: no such disk"
		}},
		{"unknown field", Message{Return: json.RawMessage(`{"state":"running","more":1}`)}, func(got StateReport, err error) bool { return err == nil && got.State == StateRunning }},
		{"wrong type", Message{Return: json.RawMessage(`[]`)}, func(_ StateReport, err error) bool { return errors.Is(err, ErrProtocol) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client, launcher := newClient(t, nil)
			go func() {
				m, err := launcher.Receive()
				if err != nil {
					return
				}
				tt.answer.ID = m.ID
				launcher.Send(tt.answer)
			}()
			var got StateReport
			if err := client.Call(context.Background(), CommandQueryState, nil, &got); !tt.check(got, err) {
				t.Errorf("got %+v, error %v", got, err)
			}
		})
	}
}

func TestAnswersOutOfOrder(t *testing.T) {
	client, launcher := newClient(t, nil)
	const calls = 20
	done := make(chan error, calls)
	for i := range calls {
		go func() {
			var got int
			err := client.Call(context.Background(), "double", i, &got)
			if err == nil && got != 2*i {
				err = fmt.Errorf("double %d: got %d", i, got)
			}
			done <- err
		}()
	}
	asked := make([]*Message, calls)
	for i := range asked {
		asked[i] = receive(t, launcher)
	}
	send(t, launcher, Message{ID: 1 << 40, Return: json.RawMessage(`7`)}) // to nobody
	for i := range asked {
		m := asked[calls-1-i]
		var n int
		if err := Decode(m.Data, &n); err != nil {
			t.Fatal(err)
		}
		send(t, launcher, Message{ID: m.ID, Return: json.RawMessage(fmt.Sprint(2 * n))})
	}
	for range calls {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestCallCancelled(t *testing.T) {
	client, launcher := newClient(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- client.Call(ctx, "first", nil, nil) }()
	first := receive(t, launcher)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	// Its late answer must not be taken for the next one's.
	send(t, launcher, Message{ID: first.ID, Return: json.RawMessage(`"late"`)})
	var got string
	go func() { done <- client.Call(context.Background(), "second", nil, &got) }()
	second := receive(t, launcher)
	send(t, launcher, Message{ID: second.ID, Return: json.RawMessage(`"second"`)})
	if err := <-done; err != nil || got != "second" {
		t.Errorf("got %q, %v", got, err)
	}
	if client.answered(first.ID) != nil || client.answered(second.ID) != nil {
		t.Error("an answered call is still owed")
	}
}

// TestLateConsoleIsClosed: a console that comes after its caller went is closed, or each such call would cost
// virt-handler a file.
func TestLateConsoleIsClosed(t *testing.T) {
	client, launcher := newClient(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := client.CallForStream(ctx, CommandConsole, nil)
		done <- err
	}()
	asked := receive(t, launcher)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	sent, kept := socketpair(t)
	console, err := sent.File()
	if err != nil {
		t.Fatal(err)
	}
	send(t, launcher, Message{ID: asked.ID, Return: json.RawMessage("null"), Files: []File{{FileConsole, console}}})
	console.Close()
	sent.Close()
	if _, err := kept.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the console's other end reads %v, want its end", err)
	}
}

func TestCallSendsFiles(t *testing.T) {
	client, launcher := newClient(t, nil)
	done := make(chan error, 1)
	go func() {
		done <- client.Call(context.Background(), CommandStart, nil, nil, File{"tap/default/0", text(t, "tap")}, File{"dhcp/default", text(t, "dhcp")})
	}()
	m := receive(t, launcher)
	defer m.Close()
	if got := contents(t, m.Files); got != "tap/default/0=tap dhcp/default=dhcp" {
		t.Errorf("files %q", got)
	}
	send(t, launcher, Message{ID: m.ID, Return: json.RawMessage(`null`)})
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestConnectionEnds(t *testing.T) {
	tests := map[string]struct {
		do   func(launcher *Conn)
		want error
	}{
		"closed":    {func(l *Conn) { l.Close() }, io.EOF},
		"garbage":   {func(l *Conn) { l.unix.Write([]byte("garbage\n")) }, ErrProtocol},
		"a command": {func(l *Conn) { l.Send(Message{Execute: "start"}) }, ErrProtocol},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			client, launcher := newClient(t, nil)
			done := make(chan error, 1)
			go func() { done <- client.Call(context.Background(), "wait", nil, nil) }()
			receive(t, launcher)
			tt.do(launcher)
			if err := <-done; !errors.Is(err, ErrClosed) || !errors.Is(err, tt.want) {
				t.Errorf("waiting call: %v, want %v", err, tt.want)
			}
			<-client.Done()
			if err := client.Err(); !errors.Is(err, tt.want) {
				t.Errorf("Err: %v, want %v", err, tt.want)
			}
			if err := client.Call(context.Background(), "late", nil, nil); !errors.Is(err, ErrClosed) {
				t.Errorf("later call: %v", err)
			}
		})
	}
}

// TestFloodingLauncherIsReadSlowly: a launcher that sends without end is read no faster than is allowed,
// and is still answered.
func TestFloodingLauncherIsReadSlowly(t *testing.T) {
	client, launcher := newClient(t, nil)
	junk := json.RawMessage(`"` + strings.Repeat("x", 256<<10) + `"`)
	begin := time.Now()
	for range 48 { // 12 MiB
		send(t, launcher, Message{ID: 1 << 40, Return: junk})
	}
	called := make(chan error, 1)
	go func() { called <- client.Call(context.Background(), CommandQueryState, nil, nil) }()
	send(t, launcher, Message{ID: receive(t, launcher).ID, Return: json.RawMessage(`{}`)})
	if err := <-called; err != nil {
		t.Error(err)
	}
	if took, least := time.Since(begin), time.Second*(12<<20-readBurst)/readRate; took < least {
		t.Errorf("12 MiB were read within %s, want at least %s", took, least)
	}
}
