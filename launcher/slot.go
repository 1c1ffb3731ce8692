package launcher

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// How long the launcher waits before it dials again, at first and at most.
const (
	firstRedial = 100 * time.Millisecond
	lastRedial  = 2 * time.Second
)

// slot keeps a connection to virt-handler: it dials, says hello with the
// launcher's state and network namespace, hands messages to the loop, and
// dials again when the handler went away. The VM does not notice.
type slot struct {
	socket  string
	version string
	log     *slog.Logger
	// messages are the handler's commands.
	messages chan *message

	mu    sync.Mutex
	state control.StateReport
	conn  *control.Conn // nil while not connected

	closing chan struct{}
	done    chan struct{}
}

// message is a command and the connection to answer on.
type message struct {
	*control.Message
	conn *control.Conn
	log  *slog.Logger
}

// answer sends a result or an error; a handler that is gone asks again.
func (m *message) answer(result any, err error) {
	reply := control.Message{ID: m.ID}
	if err != nil {
		reply.Error = &control.RemoteError{Description: err.Error()}
	} else if reply.Return, err = json.Marshal(result); err != nil {
		reply.Error = &control.RemoteError{Description: err.Error()}
	}
	if err := m.conn.Send(reply); err != nil {
		m.log.Warn("answer virt-handler", "command", m.Execute, "error", err)
	}
}

func newSlot(socket, qemuVersion string, state control.StateReport, log *slog.Logger) *slot {
	s := &slot{socket: socket, version: qemuVersion, state: state, log: log,
		messages: make(chan *message), closing: make(chan struct{}), done: make(chan struct{})}
	go s.run()
	return s
}

// Close ends the connection and the goroutine.
func (s *slot) Close() {
	close(s.closing)
	s.mu.Lock()
	if s.conn != nil {
		s.conn.Close()
	}
	s.mu.Unlock()
	<-s.done
}

// report sends the new state, and keeps it for the next hello.
func (s *slot) report(state control.StateReport) {
	s.mu.Lock()
	s.state = state
	conn := s.conn
	s.mu.Unlock()
	if conn == nil {
		return
	}
	data, err := json.Marshal(state)
	if err == nil {
		err = conn.Send(control.Message{Event: control.EventState, Data: data})
	}
	if err != nil {
		s.log.Warn("report state", "error", err)
	}
}

func (s *slot) run() {
	defer close(s.done)
	redial := firstRedial
	for {
		connected, err := s.serve()
		if connected {
			redial = firstRedial
		}
		s.log.Debug("not connected to virt-handler", "error", err, "redial", redial)
		timer := time.NewTimer(redial)
		select {
		case <-s.closing:
			timer.Stop()
			return
		case <-timer.C:
		}
		redial = min(2*redial, lastRedial)
	}
}

// serve dials and reads until the connection ends; connected says whether
// hello was sent.
func (s *slot) serve() (connected bool, err error) {
	raw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.socket, Net: "unix"})
	if err != nil {
		return false, err
	}
	conn := control.NewConn(raw)
	defer conn.Close()
	if err := s.hello(conn); err != nil {
		return false, err
	}
	defer func() {
		s.mu.Lock()
		s.conn = nil
		s.mu.Unlock()
	}()
	for {
		m, err := conn.Receive()
		if err != nil {
			return true, err
		}
		if m.Execute == "" {
			m.Close()
			return true, fmt.Errorf("%w: the handler sends only commands", control.ErrProtocol)
		}
		select {
		case s.messages <- &message{Message: m, conn: conn, log: s.log}:
		case <-s.closing:
			m.Close()
			return true, nil
		}
	}
}

func (s *slot) hello(conn *control.Conn) error {
	netns, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer netns.Close()
	// Held until hello is sent: no state may overtake it, and none be lost.
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closing:
		return net.ErrClosed
	default:
	}
	data, err := json.Marshal(control.Hello{Version: control.Version, QEMUVersion: s.version, State: s.state})
	if err != nil {
		return err
	}
	if err := conn.Send(control.Message{Event: control.EventHello, Data: data, Files: []*os.File{netns}}); err != nil {
		return err
	}
	s.conn = conn
	return nil
}
