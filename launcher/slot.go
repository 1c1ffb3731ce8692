package launcher

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
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
	agent *control.AgentReport // nil until something is known
	line  *line                // nil while not connected

	closing chan struct{}
	done    chan struct{}
}

// message is a command and the connection to answer on.
type message struct {
	*control.Message
	line *line
	log  *slog.Logger
}

// answer sends a result or an error, and takes over the file that answers to the
// command bring; a handler that is gone asks again.
func (m *message) answer(result any, err error, files ...*os.File) {
	reply := control.Message{ID: m.ID}
	for _, f := range files {
		brought, _ := control.AnswerFile(m.Execute)
		reply.Files = append(reply.Files, control.File{Name: brought.Name, File: f})
	}
	if err != nil {
		reply.Error = &control.RemoteError{Description: err.Error()}
	} else if reply.Return, err = json.Marshal(result); err != nil {
		reply.Error = &control.RemoteError{Description: err.Error()}
	}
	if err := m.line.send(reply); err != nil {
		m.log.Warn("answer virt-handler", "command", m.Execute, "error", err)
	}
}

func newSlot(socket, qemuVersion string, state control.StateReport, log *slog.Logger) *slot {
	s := &slot{socket: socket, version: qemuVersion, state: state, log: log,
		messages: make(chan *message), closing: make(chan struct{}), done: make(chan struct{})}
	go s.run()
	return s
}

// Close ends the connection, once what was said last has been sent or has had
// its time, and the goroutines.
func (s *slot) Close() {
	close(s.closing)
	s.mu.Lock()
	line := s.line
	s.mu.Unlock()
	if line != nil {
		line.flush()
		line.conn.Close()
	}
	<-s.done
}

// keep has the next hello say the new state.
func (s *slot) keep(state control.StateReport) *line {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
	return s.line
}

// report sends the new state, and keeps it for the next hello.
func (s *slot) report(state control.StateReport) {
	line := s.keep(state)
	if line == nil {
		return
	}
	data, err := json.Marshal(state)
	if err == nil {
		err = line.send(control.Message{Event: control.EventState, Data: data})
	}
	if err != nil {
		s.log.Warn("report state", "error", err)
	}
}

// reportAgent sends what is known of the guest's agent, and keeps it for after
// the next hello.
func (s *slot) reportAgent(report control.AgentReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agent = &report
	if s.line != nil {
		s.sendAgent(s.line)
	}
}

// sendAgent is for who holds mu.
func (s *slot) sendAgent(line *line) {
	data, err := json.Marshal(s.agent)
	if err == nil {
		err = line.send(control.Message{Event: control.EventAgent, Data: data})
	}
	if err != nil {
		s.log.Warn("report the guest agent", "error", err)
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
	line := newLine(control.NewConn(raw))
	defer line.close()
	if err := s.hello(line); err != nil {
		return false, err
	}
	defer func() {
		s.mu.Lock()
		s.line = nil
		s.mu.Unlock()
	}()
	for {
		m, err := line.conn.Receive()
		if err != nil {
			return line.greeted.Load(), err
		}
		if m.Execute == "" {
			m.Close()
			line.conn.Refuse()
			return true, fmt.Errorf("%w: the handler sends only commands", control.ErrProtocol)
		}
		select {
		case s.messages <- &message{Message: m, line: line, log: s.log}:
		case <-s.closing:
			m.Close()
			return true, nil
		}
	}
}

func (s *slot) hello(line *line) error {
	netns, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	// Held until hello is in the queue: no state may overtake it, and none be lost.
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closing:
		netns.Close()
		return net.ErrClosed
	default:
	}
	data, err := json.Marshal(control.Hello{Version: control.Version, Features: control.Features(), QEMUVersion: s.version, State: s.state})
	if err != nil {
		netns.Close()
		return err
	}
	s.line = line
	if err := line.send(control.Message{Event: control.EventHello, Data: data, Files: []control.File{{Name: control.FileNetNS, File: netns}}}); err != nil {
		return err
	}
	if s.agent != nil {
		s.sendAgent(line)
	}
	return nil
}

// lineQueue is how many messages wait for a handler that does not read. The
// launcher reports a handful of states, and answers one question at a time.
const lineQueue = 16

// errNotRead ends a connection whose other end does not read; the next one
// begins with the state as it is then.
var errNotRead = errors.New("virt-handler does not read what it is told")

// line is one connection to virt-handler. What is said on it is sent by a
// goroutine of its own: a handler that hangs holds up nobody else.
type line struct {
	conn    *control.Conn
	queue   chan control.Message
	greeted atomic.Bool // something was sent
	full    atomic.Bool // given up, because the queue was full

	ending  chan struct{} // closed: send what waits, and no more
	endOnce sync.Once
	sent    chan struct{} // closed when nothing more will be sent
}

func newLine(conn *control.Conn) *line {
	l := &line{conn: conn, queue: make(chan control.Message, lineQueue), ending: make(chan struct{}), sent: make(chan struct{})}
	go l.run()
	return l
}

// send queues a message, and takes over its files.
func (l *line) send(m control.Message) error {
	select {
	case l.queue <- m:
		return nil
	default:
		m.Close()
		if l.full.Swap(true) {
			return nil // said once
		}
		l.conn.Close()
		return errNotRead
	}
}

func (l *line) run() {
	defer close(l.sent)
	for {
		select {
		case m := <-l.queue:
			l.write(m)
		case <-l.ending:
			for {
				select {
				case m := <-l.queue:
					l.write(m)
				default:
					return
				}
			}
		}
	}
}

// write sends a message. After a failure the connection is closed, which ends
// serve; what is written then fails at once.
func (l *line) write(m control.Message) {
	if l.conn.Send(m) == nil {
		l.greeted.Store(true)
	}
	m.Close()
}

// flush gives what waits a moment to be sent.
func (l *line) flush() {
	l.endOnce.Do(func() { close(l.ending) })
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	select {
	case <-l.sent:
	case <-timeout.C:
	}
}

// close ends the connection and waits for the goroutine.
func (l *line) close() {
	l.conn.Close()
	l.endOnce.Do(func() { close(l.ending) })
	<-l.sent
}
