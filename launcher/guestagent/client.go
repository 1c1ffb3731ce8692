package guestagent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"
)

// answerTimeout is how long an agent may take to answer. An emulated guest that
// boots, beside others, takes seconds.
const answerTimeout = 10 * time.Second

// recently is for how long an answer shows that the agent is there, while another caller waits
// for the next answer.
const recently = 5 * time.Second

// ErrSilent: the agent did not answer in time, or did not answer what it was asked. It may be
// stopped or busy, or there is no agent.
var ErrSilent = errors.New("the guest agent does not answer")

// Client asks one agent. Its methods may be called from any goroutine; one
// command is in flight at a time. Between commands nothing is read: what a
// guest sends unasked waits with the guest.
type Client struct {
	conn   net.Conn
	budget *budget
	reader *bufio.Reader // of budget
	// turn is a semaphore of 1: its holder may use the fields above, and synced.
	turn chan struct{}
	// synced: the next reply answers the next command.
	synced bool

	mu       sync.Mutex
	answered time.Time     // when the agent answered last
	answer   chan struct{} // closed at its next answer
}

// New makes a Client on the launcher's end of the port, which it takes over.
func New(conn net.Conn) *Client {
	b := &budget{Reader: conn}
	return &Client{conn: conn, budget: b, reader: bufio.NewReader(b), turn: make(chan struct{}, 1), answer: make(chan struct{})}
}

// Close ends the port; QEMU goes on.
func (c *Client) Close() error { return c.conn.Close() }

// Desync makes the next command begin with a synchronization: there may be another agent
// behind the port now.
func (c *Client) Desync(ctx context.Context) error {
	if err := c.begin(ctx); err != nil {
		return err
	}
	defer c.end()
	c.synced = false
	return nil
}

// begin waits for the turn.
func (c *Client) begin(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Client) end() { <-c.turn }

// heard notes that the agent has answered.
func (c *Client) heard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered = time.Now()
	close(c.answer)
	c.answer = make(chan struct{})
}

// Alive finds out whether the agent answers, as Ping does. While another command has the turn,
// an answer to that command is enough: the agent is not to blame for what it is asked.
func (c *Client) Alive(ctx context.Context) error {
	c.mu.Lock()
	answered, answer := c.answered, c.answer
	c.mu.Unlock()
	select {
	case c.turn <- struct{}{}:
	default:
		if time.Since(answered) < recently {
			return nil
		}
		select {
		case c.turn <- struct{}{}:
		case <-answer:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer c.end()
	select {
	case <-answer:
		return nil
	default:
	}
	if err := c.sync(ctx); err != nil {
		return err
	}
	_, err := c.exchange(ctx, request{Execute: "guest-ping"}, answerTimeout)
	return err
}

// request is a command as the agent takes it.
type request struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
}

// do runs a command and decodes its result into result, unless that is nil.
func (c *Client) do(ctx context.Context, command string, arguments, result any) error {
	data, err := c.ask(ctx, request{command, arguments}, answerTimeout)
	if err != nil || result == nil {
		return err
	}
	if err := json.Unmarshal(data, result); err != nil {
		return fmt.Errorf("%s: %w: %s", command, ErrReply, clip(err.Error(), maxText))
	}
	return nil
}

// doList runs a command whose result is a list, of which at most limit elements
// are taken.
func doList[T any](ctx context.Context, c *Client, command string, limit int) ([]T, error) {
	data, err := c.ask(ctx, request{Execute: command}, answerTimeout)
	if err != nil {
		return nil, err
	}
	out, err := list[T](data, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	return out, nil
}

// ask runs a command and waits for its answer.
func (c *Client) ask(ctx context.Context, r request, timeout time.Duration) (json.RawMessage, error) {
	if err := c.begin(ctx); err != nil {
		return nil, err
	}
	defer c.end()
	if err := c.sync(ctx); err != nil {
		return nil, err
	}
	return c.exchange(ctx, r, timeout)
}

// exchange sends a command and reads the answer. Its caller has the turn, and has
// synchronized.
func (c *Client) exchange(ctx context.Context, r request, timeout time.Duration) (json.RawMessage, error) {
	var data json.RawMessage
	err := c.within(ctx, timeout, func() error {
		if err := c.send(r); err != nil {
			return err
		}
		line, err := readReply(c.reader)
		if err != nil {
			return err
		}
		data, err = parseReply(r.Execute, line)
		return err
	})
	var said *Error
	if err == nil || errors.As(err, &said) {
		c.heard()
	}
	return data, c.judge(r.Execute, err)
}

// tell runs a command that has no answer if it succeeds, such as guest-shutdown. If it fails,
// the next command's synchronization skips the answer.
func (c *Client) tell(ctx context.Context, r request) error {
	if err := c.begin(ctx); err != nil {
		return err
	}
	defer c.end()
	if err := c.sync(ctx); err != nil {
		return err
	}
	c.synced = false
	return c.judge(r.Execute, c.within(ctx, answerTimeout, func() error { return c.send(r) }))
}

// sync skips whatever was sent before, perhaps by another agent. Its caller has the turn.
func (c *Client) sync(ctx context.Context) error {
	if c.synced {
		return nil
	}
	id := rand.Int64N(1 << 53)
	err := c.within(ctx, answerTimeout, func() error {
		r := request{"guest-sync-delimited", map[string]int64{"id": id}}
		// The delimiter ends whatever the agent has of an earlier command.
		if _, err := c.conn.Write([]byte{delimiter}); err != nil {
			return err
		}
		if err := c.send(r); err != nil {
			return err
		}
		// The answer to an earlier synchronization may come first.
		for range maxLate {
			if err := skip(c.reader); err != nil {
				return err
			}
			line, err := readReply(c.reader)
			if err != nil {
				return err
			}
			data, err := parseReply(r.Execute, line)
			var got int64
			if err == nil && json.Unmarshal(data, &got) == nil && got == id {
				c.synced = true
				c.heard()
				return nil
			}
		}
		return fmt.Errorf("%w: none is to what was asked", ErrReply)
	})
	if err == nil {
		return nil
	}
	// Whatever was sent, it came from no agent that can be asked.
	return fmt.Errorf("synchronize with the guest agent: %w: %w", ErrSilent, err)
}

// maxLate is how many answers may come before the one that is waited for.
const maxLate = 256

func (c *Client) send(r request) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode command: %w", err)
	}
	_, err = c.conn.Write(append(line, '\n'))
	return err
}

// within ends work in time. If work fails because ctx ended, the error wraps ctx's error too.
func (c *Client) within(ctx context.Context, timeout time.Duration, work func() error) error {
	if err := c.conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	c.budget.left = maxRead
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.conn.SetDeadline(time.Now())
		close(interrupted)
	})
	err := work()
	if stop() {
		return err
	}
	<-interrupted // else it would interrupt the next command
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// judge wraps the error of a command. After any error but an answer of the agent, the next
// command begins with a synchronization.
func (c *Client) judge(command string, err error) error {
	var said *Error
	if err == nil || errors.As(err, &said) {
		return err
	}
	c.synced = false
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("%s: %w: %w", command, ErrSilent, err)
	}
	return fmt.Errorf("%s: %w", command, err)
}
