// Package launchertest is virt-handler, and a guest, to a launcher that a test runs.
package launchertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Launcher is a launcher that has said hello.
type Launcher struct {
	*control.Client
	Hello  control.Hello
	NetNS  *os.File
	States chan control.StateReport // since hello; of a launcher that Accept took
}

// Listen listens in virt-handler's place until the test ends.
func Listen(t testing.TB, socket string) *net.UnixListener {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

// Accept takes the next launcher that connects, and closes the connection when the test
// ends. The test fails where the launcher says anything but hello and then states.
func Accept(t testing.TB, listener *net.UnixListener) *Launcher {
	t.Helper()
	states := make(chan control.StateReport, 100)
	l, err := Take(listener, func(report control.StateReport, err error) {
		if err != nil {
			t.Error(err)
		}
		states <- report
	})
	if err != nil {
		t.Fatal(err)
	}
	l.States = states
	t.Cleanup(l.Close)
	return l
}

// Take takes the next launcher that connects. The function reported gets each state, and an
// error for each other event, except reports of the guest's agent.
func Take(listener *net.UnixListener, reported func(control.StateReport, error)) (*Launcher, error) {
	listener.SetDeadline(time.Now().Add(testkit.Patience))
	conn, err := listener.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("wait for a launcher: %w", err)
	}
	l, hello, ready := &Launcher{}, make(chan error, 1), make(chan struct{})
	greeted := false
	l.Client = control.NewClient(control.NewConn(conn), control.Limits{}, func(m *control.Message) {
		<-ready
		if !greeted {
			greeted = true
			hello <- l.greet(m)
			return
		}
		defer m.Close()
		if m.Event == control.EventAgent && len(m.Files) == 0 {
			return // package agent's tests read these
		}
		var report control.StateReport
		err := control.Decode(m.Data, &report)
		if err != nil || m.Event != control.EventState || len(m.Files) != 0 {
			err = fmt.Errorf("unexpected event %s with %d files: %s (%w)", m.Event, len(m.Files), m.Data, err)
		}
		reported(report, err)
	})
	close(ready)
	select {
	case err = <-hello:
	case <-l.Done():
		err = l.Err()
	case <-time.After(testkit.Patience):
		err = errors.New("it does not come")
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("wait for a launcher's hello: %w", err)
	}
	return l, nil
}

func (l *Launcher) greet(m *control.Message) error {
	if m.Event != control.EventHello || len(m.Files) != 1 {
		m.Close()
		return fmt.Errorf("unexpected event %s with %d files: %s", m.Event, len(m.Files), m.Data)
	}
	l.NetNS = m.Files[0].File
	return control.Decode(m.Data, &l.Hello)
}

// Close ends the connection. The launcher dials again.
func (l *Launcher) Close() {
	l.Client.Close()
	if l.NetNS != nil {
		l.NetNS.Close()
	}
}

// Ask sends a command, and waits for the answer.
func (l *Launcher) Ask(command string, arguments, result any, files ...control.File) error {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	return l.Call(ctx, command, arguments, result, files...)
}
