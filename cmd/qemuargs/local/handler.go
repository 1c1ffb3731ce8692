package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// helloTimeout is how long the launcher may take to say hello, and answerTimeout to answer.
const (
	helloTimeout  = 10 * time.Second
	answerTimeout = 10 * time.Second
)

// handler stands in virt-handler's place for a launcher in this process.
type handler struct {
	listener *net.UnixListener
	client   *control.Client // nil before hello
	// states are the states that the launcher has reported.
	states chan control.State
}

func listen(socket string) (*handler, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the launcher: %w", err)
	}
	// A launcher reports a handful of states before somebody looks.
	return &handler{listener: listener, states: make(chan control.State, 64)}, nil
}

// accept waits for the launcher's hello.
func (h *handler) accept() error {
	h.listener.SetDeadline(time.Now().Add(helloTimeout))
	conn, err := h.listener.AcceptUnix()
	if err != nil {
		return fmt.Errorf("wait for the launcher: %w", err)
	}
	hello := make(chan error, 1)
	h.client = control.NewClient(control.NewConn(conn), control.Limits{}, func(m *control.Message) { h.heard(m, hello) })
	timeout := time.NewTimer(helloTimeout)
	defer timeout.Stop()
	select {
	case err = <-hello:
	case <-h.client.Done():
		err = h.client.Err()
	case <-timeout.C:
		err = errors.New("it does not say hello")
	}
	if err != nil {
		return fmt.Errorf("wait for the launcher: %w", err)
	}
	return nil
}

// heard takes an event of the launcher. It must not wait.
func (h *handler) heard(m *control.Message, hello chan<- error) {
	defer m.Close()
	switch m.Event {
	case control.EventHello:
		var said control.Hello
		err := control.Told(m.Data, &said)
		select {
		case hello <- err:
		default:
		}
	case control.EventState:
		var report control.StateReport
		if control.Told(m.Data, &report) == nil {
			select {
			case h.states <- report.State:
			default: // nobody looks any more
			}
		}
	}
}

// call sends a command and waits for its answer.
func (h *handler) call(ctx context.Context, command string, arguments any) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return h.client.Call(ctx, command, arguments, nil)
}

func (h *handler) close() {
	h.listener.Close()
	if h.client != nil {
		h.client.Close()
	}
}
