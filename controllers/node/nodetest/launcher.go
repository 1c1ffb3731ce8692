package nodetest

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/control/controltest"
)

// Launcher is the launcher's end of a connection.
type Launcher struct {
	t    *testing.T
	Raw  *net.UnixConn
	Conn *control.Conn
}

// NewLauncher speaks over a connection, which the test's end closes. All that
// virt-handler says must have come within testkit.Patience.
func NewLauncher(t *testing.T, raw *net.UnixConn) *Launcher {
	t.Helper()
	t.Cleanup(func() { raw.Close() })
	raw.SetReadDeadline(time.Now().Add(testkit.Patience))
	return &Launcher{t, raw, control.NewConn(raw)}
}

// Dial returns a launcher that dials the slot in a folder.
func Dial(t *testing.T, folder string) *Launcher {
	t.Helper()
	raw, err := DialSlot(folder)
	if err != nil {
		t.Fatal(err)
	}
	return NewLauncher(t, raw)
}

// DialSlot dials the slot in a folder.
func DialSlot(folder string) (*net.UnixConn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(folder, "handler.sock"), Net: "unix"})
}

// Send sends an event. Its files have the name of hello's.
func (l *Launcher) Send(event string, data any, files ...*os.File) {
	l.t.Helper()
	encoded, err := json.Marshal(data)
	if err != nil {
		l.t.Fatal(err)
	}
	m := control.Message{Event: event, Data: encoded}
	for i, f := range files {
		m.Files = append(m.Files, control.File{Name: control.FileNetNS + strings.Repeat("+", i), File: f})
	}
	if err := l.Conn.Send(m); err != nil {
		l.t.Fatal(err)
	}
}

// HangsUp waits until virt-handler closes the connection.
func (l *Launcher) HangsUp() {
	l.t.Helper()
	if m, err := l.Conn.Receive(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		l.t.Fatalf("got message %+v, error %v: want the connection closed", m, err)
	}
}

// Hello returns the hello of a launcher that waits for its VM.
func Hello() control.Hello {
	return control.Hello{Version: control.Version, Knows: control.CommandsDigest(), QEMUVersion: "7.2.22",
		State: control.StateReport{State: control.StateWaiting}}
}

// Knows greets virt-handler as a launcher of another version does, and answers what the launcher knows.
func (l *Launcher) Knows(commands control.Commands, netns *os.File) {
	l.t.Helper()
	hello := Hello()
	hello.Knows = "something else"
	l.Send(control.EventHello, hello, netns)
	asked, err := l.Conn.Receive()
	if err != nil || asked.Execute != control.CommandQueryCommands {
		l.t.Fatalf("virt-handler asks a launcher of another version for %+v, %v", asked, err)
	}
	said, err := json.Marshal(commands)
	if err == nil {
		err = l.Conn.Send(control.Message{ID: asked.ID, Return: said})
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// AnswerUntil answers what is asked with nothing to say, up to one of the commands.
func (l *Launcher) AnswerUntil(commands ...string) *control.Message {
	l.t.Helper()
	for {
		m, err := l.Conn.Receive()
		if err != nil {
			l.t.Fatal(err)
		}
		if err := l.Conn.Send(control.Message{ID: m.ID, Return: json.RawMessage(`{}`)}); err != nil {
			l.t.Fatal(err)
		}
		if slices.Contains(commands, m.Execute) {
			return m
		}
		m.Close()
	}
}

// Lingering returns a file whose close(2) does not return.
func Lingering(t *testing.T) *os.File {
	t.Helper()
	return os.NewFile(uintptr(controltest.Lingering(t)), "lingers")
}
