// Package link keeps virt-launcher connected to virt-handler.
package link

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

// flushTimeout bounds how long Close waits for queued messages to be sent.
const flushTimeout = time.Second

// Link keeps a connection to virt-handler. It dials, says hello with the launcher's
// state and network namespace, hands virt-handler's commands to the loop, and dials
// again when virt-handler went away. The VM does not notice.
type Link struct {
	socket   string
	version  string
	log      *slog.Logger
	commands chan *Command

	mu         sync.Mutex
	state      control.StateReport
	agent      *control.AgentReport // nil until something is known
	connection *connection          // nil while not connected

	closing chan struct{}
	done    chan struct{}
}

// Command is a command of virt-handler.
type Command struct {
	*control.Message
	// Send queues the answer, and takes over its files.
	Send func(control.Message) error
	Log  *slog.Logger
}

// Answer sends a result or an error. It takes over the file that answers to this command
// bring. If virt-handler is gone, it asks again when it is back.
func (m *Command) Answer(result any, err error, files ...*os.File) {
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
	if err := m.Send(reply); err != nil {
		m.Log.Warn("answer virt-handler", "command", m.Execute, "error", err)
	}
}

// New returns a Link that dials a socket until Close. state is for the first hello.
func New(socket, qemuVersion string, state control.StateReport, log *slog.Logger) *Link {
	l := &Link{socket: socket, version: qemuVersion, state: state, log: log,
		commands: make(chan *Command), closing: make(chan struct{}), done: make(chan struct{})}
	go l.run()
	return l
}

// Commands returns virt-handler's commands, one after the other.
func (l *Link) Commands() <-chan *Command { return l.commands }

// Close ends the connection and the goroutines. Queued messages get a moment to be sent first.
func (l *Link) Close() {
	close(l.closing)
	l.mu.Lock()
	connection := l.connection
	l.mu.Unlock()
	if connection != nil {
		connection.flush()
		connection.conn.Close()
	}
	<-l.done
}

// Keep stores the new state for the next hello, and sends nothing now.
func (l *Link) Keep(state control.StateReport) { l.keep(state) }

func (l *Link) keep(state control.StateReport) *connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = state
	return l.connection
}

// Report sends the new state, and keeps it for the next hello.
func (l *Link) Report(state control.StateReport) {
	connection := l.keep(state)
	if connection == nil {
		return
	}
	data, err := json.Marshal(state)
	if err == nil {
		err = connection.send(control.Message{Event: control.EventState, Data: data})
	}
	if err != nil {
		l.log.Warn("report state", "error", err)
	}
}

// ReportAgent sends what is known of the guest's agent, and keeps it for after
// the next hello.
func (l *Link) ReportAgent(report control.AgentReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agent = &report
	if l.connection != nil {
		l.sendAgent(l.connection)
	}
}

// sendAgent needs mu to be held.
func (l *Link) sendAgent(connection *connection) {
	data, err := json.Marshal(l.agent)
	if err == nil {
		err = connection.send(control.Message{Event: control.EventAgent, Data: data})
	}
	if err != nil {
		l.log.Warn("report the guest agent", "error", err)
	}
}

func (l *Link) run() {
	defer close(l.done)
	redial := firstRedial
	for {
		connected, err := l.serve()
		if connected {
			redial = firstRedial
		}
		l.log.Debug("not connected to virt-handler", "error", err, "redial", redial)
		timer := time.NewTimer(redial)
		select {
		case <-l.closing:
			timer.Stop()
			return
		case <-timer.C:
		}
		redial = min(2*redial, lastRedial)
	}
}

// serve dials and reads until the connection ends; connected says whether
// hello was sent.
func (l *Link) serve() (connected bool, err error) {
	raw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: l.socket, Net: "unix"})
	if err != nil {
		return false, err
	}
	connection := newConnection(control.NewConn(raw))
	defer connection.close()
	if err := l.hello(connection); err != nil {
		return false, err
	}
	defer func() {
		l.mu.Lock()
		l.connection = nil
		l.mu.Unlock()
	}()
	for {
		m, err := connection.conn.Receive()
		if err != nil {
			return connection.greeted.Load(), err
		}
		if m.Execute == "" {
			m.Close()
			connection.conn.Refuse()
			return true, fmt.Errorf("%w: the handler sends only commands", control.ErrProtocol)
		}
		select {
		case l.commands <- &Command{Message: m, Send: connection.send, Log: l.log}:
		case <-l.closing:
			m.Close()
			return true, nil
		}
	}
}

func (l *Link) hello(connection *connection) error {
	netns, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	// mu is held until hello is in the queue: no state report may overtake hello, or be lost.
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closing:
		netns.Close()
		return net.ErrClosed
	default:
	}
	data, err := json.Marshal(control.Hello{Version: control.Version, Knows: control.CommandsDigest(), QEMUVersion: l.version,
		State: l.state})
	if err != nil {
		netns.Close()
		return err
	}
	l.connection = connection
	if err := connection.send(control.Message{Event: control.EventHello, Data: data, Files: []control.File{{Name: control.FileNetNS, File: netns}}}); err != nil {
		return err
	}
	if l.agent != nil {
		l.sendAgent(connection)
	}
	return nil
}

// queueLength is how many messages may wait while virt-handler does not read. The launcher
// reports a handful of states, and answers one question at a time.
const queueLength = 16

// errNotRead ends a connection whose other end does not read; the next one
// begins with the state as it is then.
var errNotRead = errors.New("virt-handler does not read what it is told")

// connection is one connection to virt-handler. Its own goroutine sends the queued messages,
// so a virt-handler that hangs holds up nobody else.
type connection struct {
	conn    *control.Conn
	queue   chan control.Message
	greeted atomic.Bool // something was sent
	full    atomic.Bool // given up, because the queue was full

	ending  chan struct{} // closed: send what waits, and no more
	endOnce sync.Once
	sent    chan struct{} // closed when nothing more will be sent
}

func newConnection(conn *control.Conn) *connection {
	c := &connection{conn: conn, queue: make(chan control.Message, queueLength), ending: make(chan struct{}), sent: make(chan struct{})}
	go c.run()
	return c
}

// send queues a message, and takes over its files.
func (c *connection) send(m control.Message) error {
	select {
	case c.queue <- m:
		return nil
	default:
		m.Close()
		if c.full.Swap(true) {
			return nil // the error was returned before
		}
		c.conn.Close()
		return errNotRead
	}
}

func (c *connection) run() {
	defer close(c.sent)
	for {
		select {
		case m := <-c.queue:
			c.write(m)
		case <-c.ending:
			for {
				select {
				case m := <-c.queue:
					c.write(m)
				default:
					return
				}
			}
		}
	}
}

// write sends a message. After a failure the connection is closed, which ends serve, and later
// writes fail at once.
func (c *connection) write(m control.Message) {
	if c.conn.Send(m) == nil {
		c.greeted.Store(true)
	}
	m.Close()
}

// flush gives queued messages a moment to be sent.
func (c *connection) flush() {
	c.endOnce.Do(func() { close(c.ending) })
	timeout := time.NewTimer(flushTimeout)
	defer timeout.Stop()
	select {
	case <-c.sent:
	case <-timeout.C:
	}
}

// close ends the connection and waits for the goroutine.
func (c *connection) close() {
	c.conn.Close()
	c.endOnce.Do(func() { close(c.ending) })
	<-c.sent
}
