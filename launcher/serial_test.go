package launcher

import (
	"bytes"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// console is a test that is attached to the guest's serial port.
type attached struct {
	*testkit.Transcript
	t     *testing.T
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
	a := &attached{Transcript: testkit.NewTranscript(v.T, "the console"), t: v.T, conn: conn, ended: make(chan struct{})}
	go func() { defer close(a.ended); io.Copy(a.Transcript, a.conn) }()
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
	first.Expect("hello, guest")
	v.stdout.Expect("hello, guest")

	second := attach(v)
	testkit.Receive(t, first.ended, "the end of the console that another one replaces")
	second.say("second")
	second.Expect("second")
	if strings.Contains(first.String(), "second") {
		t.Errorf("the replaced console got %q", first.String())
	}

	second.conn.Close()
	third := attach(v)
	third.say("third")
	third.Expect("third")
	third.say("P")
	testkit.Receive(t, third.ended, "the console's end with the VM")
	v.expectEnd(control.ReasonGuestShutdown, "")
	if _, err := os.Stat(v.ConsoleSocket); err == nil {
		t.Error("the console's socket is still there")
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
	testkit.Receive(t, sent, "the end of the input of a replaced console")
	v.must(v.call(control.CommandShutdown, nil, nil))
	v.expectEnd(control.ReasonGracePeriodOver, "")
}
