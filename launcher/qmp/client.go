// Package qmp speaks the QEMU Machine Protocol over a connected socket.
//
// Client is the transport. It satisfies go-qemu's Monitor, and uses its Event and Version. It
// adds what a process needs that must not hang on a reply: replies are matched by id, every
// command has a deadline, events never hold up replies, and files go along with commands.
//
// The protocol: docs/interop/qmp-spec.rst of QEMU.
package qmp

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	monitor "github.com/digitalocean/go-qemu/qmp"
)

// defaultTimeout is long for QEMU, which answers within milliseconds unless its
// main loop waits for storage.
const defaultTimeout = 10 * time.Second

// Options are the settings of a Client.
type Options struct {
	// Timeout bounds the handshake and every command whose context has no
	// deadline. Zero means 10 seconds.
	Timeout time.Duration
	// Logger takes warnings: dropped events, replies nobody waits for. Nil
	// discards them.
	Logger *slog.Logger
}

// Client is one connection to QEMU. Its methods may be called from any
// goroutine.
type Client struct {
	conn    *net.UnixConn
	timeout time.Duration
	log     *slog.Logger
	events  *eventQueue

	writing chan struct{} // a semaphore of 1: its holder may write

	mu       sync.Mutex
	lastID   uint64
	waiting  map[uint64]chan *reply
	greeting Greeting
	err      error
	stopped  bool

	greeted chan struct{} // closed when greeting is set
	done    chan struct{} // closed when err is set
	stop    chan struct{} // closed by Close
	running sync.WaitGroup
}

var _ monitor.Monitor = (*Client)(nil)

// New takes the connection over and starts to read from it.
func New(conn *net.UnixConn, opts Options) *Client {
	c := &Client{
		conn:    conn,
		timeout: cmp.Or(opts.Timeout, defaultTimeout),
		log:     cmp.Or(opts.Logger, slog.New(slog.DiscardHandler)),
		events:  newEventQueue(),
		writing: make(chan struct{}, 1),
		waiting: map[uint64]chan *reply{},
		greeted: make(chan struct{}),
		done:    make(chan struct{}),
		stop:    make(chan struct{}),
	}
	c.running.Go(c.read)
	return c
}

// Connect waits for the greeting and leaves negotiation mode. Until then QEMU
// takes no other command. It is called once.
func (c *Client) Connect() error {
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	select {
	case <-c.greeted:
	case <-c.done:
		return fmt.Errorf("wait for QMP greeting: %w", c.Err())
	case <-ctx.Done():
		return fmt.Errorf("wait for QMP greeting: %w", ErrTimeout)
	}
	return c.Execute(ctx, "qmp_capabilities", nil, nil)
}

// Greeting returns QEMU's first message; zero before Connect.
func (c *Client) Greeting() Greeting {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.greeting
}

// Version returns the version in the greeting.
func (c *Client) Version() monitor.Version { return c.Greeting().Version }

// Execute runs a command, with arguments unless they are nil, and decodes the result into
// result unless that is nil. Files go along with the command, for getfd or add-fd; they stay
// the caller's.
//
// An error reply is an *Error. When ctx ends first, the command may still run; its reply is
// discarded. The error is then ErrTimeout or ctx's.
func (c *Client) Execute(ctx context.Context, command string, arguments, result any, files ...*os.File) error {
	r, err := c.roundTrip(ctx, request{Execute: command, Arguments: arguments}, files)
	if err != nil || result == nil {
		return err
	}
	if err := json.Unmarshal(r.result, result); err != nil {
		return fmt.Errorf("decode reply to QMP command %q: %w", command, err)
	}
	return nil
}

// Run runs a command given as JSON and returns the whole reply. The reply has
// the id of the command, if that has one. An error reply is an *Error.
func (c *Client) Run(command []byte) ([]byte, error) {
	req, id, err := parseCommand(command)
	if err != nil {
		return nil, err
	}
	r, err := c.roundTrip(context.Background(), req, nil)
	if err != nil {
		return nil, err
	}
	return withID(r.line, id)
}

// Events returns the events in order, also from before the call, beginning with the oldest
// that was not received yet. The channel is closed when ctx ends, on Close, or after the last
// event of a connection that QEMU ended. There is one reader at a time: a second call returns
// ErrSubscribed.
//
// Up to 1024 events of together 1 MiB wait. Beyond that the oldest event that is not SHUTDOWN
// is dropped, with a warning.
func (c *Client) Events(ctx context.Context) (<-chan monitor.Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, ErrClosed
	}
	if !c.events.subscribe() {
		return nil, ErrSubscribed
	}
	out := make(chan monitor.Event)
	c.running.Go(func() { c.events.pump(ctx, c.stop, out) })
	return out, nil
}

// Timeout bounds each command whose context has no deadline.
func (c *Client) Timeout() time.Duration { return c.timeout }

// EventCounts returns how many events QEMU has sent up to now, and how many of them were dropped. QEMU's answer to a
// command comes after the events that QEMU sent before it, but another goroutine gets it.
func (c *Client) EventCounts() (sent, dropped int) { return c.events.counts() }

// Done returns a channel that is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended; nil while it has not. It wraps ErrClosed
// and, if there was one, the cause.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and waits for the Client's goroutines. QEMU goes on.
func (c *Client) Close() error {
	c.fail(nil)
	c.mu.Lock()
	if !c.stopped {
		c.stopped = true
		close(c.stop)
	}
	c.mu.Unlock()
	c.running.Wait()
	return nil
}

// Disconnect does what Close does. go-qemu has this name for it.
func (c *Client) Disconnect() error { return c.Close() }

// fail ends the connection. Only the first cause counts.
func (c *Client) fail(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = ErrClosed
	if cause != nil && !errors.Is(cause, io.EOF) {
		c.err = fmt.Errorf("%w: %w", ErrClosed, cause)
	}
	close(c.done)
	c.conn.Close()
}

// read hands every message on until the connection ends.
func (c *Client) read() {
	defer c.events.end()
	r := bufio.NewReader(c.conn)
	for {
		line, err := readLine(r)
		var m message
		if err == nil {
			m, err = parse(line)
		}
		if err != nil {
			c.fail(err)
			return
		}
		switch {
		case m.event != nil:
			if n := c.events.add(*m.event, len(line)); n > 0 {
				c.log.Warn("drop QMP event", "dropped", n)
			}
		case m.reply != nil:
			c.deliver(m.reply)
		default:
			c.greet(*m.greeting)
		}
	}
}

func (c *Client) greet(g Greeting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.greeted:
		c.log.Warn("ignore second QMP greeting")
	default:
		c.greeting = g
		close(c.greeted)
	}
}

func (c *Client) deliver(r *reply) {
	id, err := strconv.ParseUint(string(r.id), 10, 64)
	c.mu.Lock()
	waiter, ok := c.waiting[id]
	delete(c.waiting, id)
	c.mu.Unlock()
	if err != nil || !ok {
		c.log.Warn("discard QMP reply that nobody waits for", "id", string(r.id[:min(len(r.id), 32)]))
		return
	}
	waiter <- r
}

// roundTrip sends a command and waits for its reply.
func (c *Client) roundTrip(ctx context.Context, req request, files []*os.File) (*reply, error) {
	name := cmp.Or(req.Execute, req.OOB)
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	id, waiter := c.register()
	defer c.forget(id)
	req.ID = id
	line, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("encode QMP command %q: %w", name, err)
	}
	if err := c.send(ctx, append(line, '\n'), files); err != nil {
		return nil, fmt.Errorf("send QMP command %q: %w", name, err)
	}
	r, err := c.wait(ctx, waiter)
	if err != nil {
		return nil, fmt.Errorf("wait for reply to QMP command %q: %w", name, err)
	}
	if r.failed != nil {
		return nil, &Error{Command: name, Class: r.failed.Class, Desc: r.failed.Desc}
	}
	return r, nil
}

// register makes room for one reply, so that deliver never waits.
func (c *Client) register() (uint64, chan *reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	waiter := make(chan *reply, 1)
	c.waiting[c.lastID] = waiter
	return c.lastID, waiter
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

func (c *Client) wait(ctx context.Context, waiter <-chan *reply) (*reply, error) {
	select {
	case r := <-waiter:
		return r, nil
	case <-ctx.Done():
		return nil, ended(ctx)
	case <-c.done:
	}
	// The reply to quit comes right before the end.
	select {
	case r := <-waiter:
		return r, nil
	default:
		return nil, c.Err()
	}
}

// ended returns the error of a context that has ended.
func ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ErrTimeout
	}
	return ctx.Err()
}
