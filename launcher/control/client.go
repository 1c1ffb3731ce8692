package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Client is the end that asks: it matches answers to calls by id and hands
// events to one function. It owns the reading goroutine.
type Client struct {
	conn    *Conn
	onEvent func(*Message)
	pace    *rate.Limiter
	limits  Limits

	decoding sync.Mutex // a launcher has one turn at a time

	mu      sync.Mutex
	nextID  uint64
	waiting map[uint64]*call // until the launcher has answered
	long    int              // how many of waiting may get an answer of MaxMessageBytes
	err     error

	done chan struct{}
}

// Limits bound what launchers cost virt-handler.
type Limits struct {
	// Closer closes the files and connections of one launcher. All connections of that
	// launcher share it.
	Closer *Closer
	// Decoding is shared by all launchers.
	Decoding Turns
}

// call is a command whose answer the launcher owes.
type call struct {
	command   string
	answer    chan *Message
	abandoned bool // nobody waits for the answer any more
}

// Limits of what virt-handler reads from one launcher: bytes a second, and bytes at once. A
// message counts as at least leastMessage bytes. A launcher that sends more waits for room in
// its socket, and costs nobody else.
const (
	readRate     = 4 << 20
	readBurst    = 8 << 20
	leastMessage = 4 << 10
)

// maxCalls is how many answers a launcher may owe. query-state is sent even then: by it
// virt-handler finds out that a launcher does not answer.
const maxCalls = 32

// MaxLineBytes bounds a line of a launcher, such as a hello, while no long answer is due.
const MaxLineBytes = MaxReportBytes + MaxMachineBytes

// ErrClosed is returned by calls on a connection that has ended.
var ErrClosed = errors.New("control connection closed")

// ErrBusy is returned by calls to a launcher that owes too many answers already.
var ErrBusy = errors.New("virt-launcher has too many questions to answer already")

// NewClient starts reading. onEvent is called from the reading goroutine, in order, and must
// not block on a Call. onEvent closes the files of its event.
func NewClient(conn *Conn, limits Limits, onEvent func(*Message)) *Client {
	if limits.Closer == nil {
		limits.Closer = &Closer{}
	}
	conn.closer = limits.Closer
	conn.limit.Store(MaxLineBytes)
	c := &Client{conn: conn, onEvent: onEvent, pace: rate.NewLimiter(readRate, readBurst), limits: limits, waiting: map[uint64]*call{}, done: make(chan struct{})}
	go c.read()
	return c
}

func (c *Client) read() {
	defer close(c.done)
	for {
		m, err := c.conn.Receive()
		if err == nil {
			err = c.received(m)
		}
		if err == nil && c.limits.Closer.Full() {
			err = fmt.Errorf("%w: too many files of the launcher wait to be closed", ErrProtocol)
		}
		if err != nil {
			c.conn.Refuse()
			c.end(err)
			return
		}
		if delay := c.pace.ReserveN(time.Now(), max(m.size, leastMessage)).Delay(); delay > 0 {
			<-time.After(delay) // a fraction of a second
		}
	}
}

// received hands a message to onEvent or to the call that waits for it. It checks the
// message's files first, so that no other code ever holds a launcher's file of the wrong kind.
func (c *Client) received(m *Message) error {
	if m.Execute != "" {
		c.conn.drop(m.descriptors)
		return fmt.Errorf("%w: the launcher sends no commands", ErrProtocol)
	}
	if m.Event != "" {
		brought, may := EventFile(m.Event)
		if err := c.admit(m, brought, may); err != nil {
			return err
		}
		for i, d := range m.descriptors {
			m.Files = append(m.Files, File{m.names[i], os.NewFile(uintptr(d), m.names[i])})
		}
		m.descriptors = nil
		c.onEvent(m)
		return nil
	}
	asked := c.answered(m.ID)
	if asked == nil { // the launcher was not asked
		c.conn.drop(m.descriptors)
		return nil
	}
	brought, may := AnswerFile(asked.command)
	err := c.admit(m, brought, may && m.Error == nil)
	switch {
	case asked.abandoned:
		c.conn.drop(m.descriptors)
	case err != nil:
		close(asked.answer)
	default:
		asked.answer <- m
	}
	return err
}

// admit refuses a message unless it brings no file, or just the one that it may bring.
func (c *Client) admit(m *Message, brought Brought, may bool) error {
	ok := len(m.descriptors) == 0 || may && len(m.descriptors) == 1 && m.names[0] == brought.Name && m.descriptors[0].is(brought.kind)
	if ok {
		return nil
	}
	c.conn.drop(m.descriptors)
	m.descriptors = nil
	if !may {
		return fmt.Errorf("%w: a message brings files (%.64q), and may not", ErrProtocol, m.names)
	}
	return fmt.Errorf("%w: a message brings files (%.64q) that are not just %s, %s", ErrProtocol, m.names, brought.Name, brought.kind)
}

// answered removes a waiting call and returns it, or returns nil.
func (c *Client) answered(id uint64) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := c.waiting[id]
	delete(c.waiting, id)
	if asked != nil && long(asked.command) {
		if c.long--; c.long == 0 {
			c.conn.limit.Store(MaxLineBytes)
		}
	}
	return asked
}

// long reports whether the answer to a command may have up to MaxMessageBytes.
func long(command string) bool {
	switch command {
	case CommandGuestInfo, CommandUsers, CommandFileSystems:
		return true
	}
	return false
}

// Told decodes an answer or an event of the launcher, when it gets a turn.
func (c *Client) Told(data []byte, into any) error {
	c.decoding.Lock()
	defer c.decoding.Unlock()
	c.limits.Decoding.take()
	defer c.limits.Decoding.giveBack()
	return Told(data, into)
}

func (c *Client) end(err error) {
	c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for id, asked := range c.waiting {
		close(asked.answer)
		delete(c.waiting, id)
	}
}

// Done returns a channel that is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended: io.EOF if the other end closed it.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and waits for the reading goroutine.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.done
	return err
}

// Call sends a command and waits for its answer. An error of the other end is a *RemoteError;
// any other error comes from the connection or ctx.
func (c *Client) Call(ctx context.Context, command string, arguments, result any, files ...File) error {
	m, err := c.ask(ctx, command, arguments, files)
	if err != nil {
		return err
	}
	c.conn.drop(m.descriptors) // nobody asked for files
	if result == nil {
		return nil
	}
	if err := c.Told(m.Return, result); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	return nil
}

// CallForStream sends a command whose answer is a stream.
func (c *Client) CallForStream(ctx context.Context, command string, arguments any) (*Stream, error) {
	m, err := c.ask(ctx, command, arguments, nil)
	if err != nil {
		return nil, err
	}
	if len(m.descriptors) != 1 {
		return nil, fmt.Errorf("%s: %w: the answer brings no stream", command, ErrProtocol)
	}
	return newStream(m.descriptors[0], command == CommandOpenChannel, c.limits.Closer)
}

// ask sends a command and waits for its answer. An error answer becomes an error. The caller
// closes the files of the answer.
func (c *Client) ask(ctx context.Context, command string, arguments any, files []File) (*Message, error) {
	data, err := json.Marshal(arguments)
	if err != nil {
		return nil, fmt.Errorf("encode arguments of %s: %w", command, err)
	}
	id, asked, err := c.remember(command)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	if err := c.conn.Send(Message{Execute: command, ID: id, Data: data, Files: files}); err != nil {
		c.giveUp(id, asked)
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	select {
	case m, ok := <-asked.answer:
		switch {
		case !ok:
			<-c.done // then Err says why
			return nil, fmt.Errorf("%s: %w: %w", command, ErrClosed, c.Err())
		case m.Error != nil:
			return nil, fmt.Errorf("%s: %w", command, m.Error)
		}
		return m, nil
	case <-ctx.Done():
		c.giveUp(id, asked)
		return nil, fmt.Errorf("%s: %w", command, ctx.Err())
	}
}

// remember adds a call to the waiting calls.
func (c *Client) remember(command string) (uint64, *call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return 0, nil, fmt.Errorf("%w: %w", ErrClosed, c.err)
	case len(c.waiting) >= maxCalls && command != CommandQueryState:
		return 0, nil, ErrBusy
	}
	if long(command) {
		c.long++
		c.conn.limit.Store(MaxMessageBytes)
	}
	c.nextID++
	asked := &call{command: command, answer: make(chan *Message, 1)}
	c.waiting[c.nextID] = asked
	return c.nextID, asked, nil
}

// giveUp stops waiting for an answer. If the answer came meanwhile, giveUp drops its files; if
// not, the launcher still owes the answer.
func (c *Client) giveUp(id uint64, asked *call) {
	c.mu.Lock()
	owed := c.waiting[id] == asked
	if owed {
		asked.abandoned = true
	}
	c.mu.Unlock()
	if owed {
		return
	}
	if m := <-asked.answer; m != nil { // nil: the connection ended
		c.conn.drop(m.descriptors)
	}
}
