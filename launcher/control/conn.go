package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// sendTimeout bounds one Send.
const sendTimeout = 10 * time.Second

// Bounds of one message. Both ends hold them against the other.
const (
	MaxMessageBytes = 1 << 20
	MaxFiles        = 64
)

// Message is one line. Exactly one of Execute, Event, Return and Error is set.
type Message struct {
	Execute string          `json:"execute,omitempty"`
	Event   string          `json:"event,omitempty"`
	ID      uint64          `json:"id,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"` // arguments, event data
	Return  json.RawMessage `json:"return,omitempty"`
	Error   *RemoteError    `json:"error,omitempty"`
	// FileCount is how many file descriptors go with the message.
	FileCount int `json:"files,omitempty"`
	// Files are those descriptors; whoever received them closes them.
	Files []*os.File `json:"-"`

	size int // of the line that was received
}

// RemoteError is an error that the other end answered with.
type RemoteError struct {
	Description string `json:"desc"`
}

func (e *RemoteError) Error() string { return e.Description }

// Unknown says whether the launcher does not know the command. Launchers of every
// version say it in these words.
func (e *RemoteError) Unknown(command string) bool {
	return e.Description == fmt.Sprintf("unknown command %q", command)
}

// ErrProtocol is wrapped by every error about a message that breaks the protocol.
var ErrProtocol = errors.New("control protocol violated")

// Close closes the message's files.
func (m *Message) Close() {
	for _, f := range m.Files {
		f.Close()
	}
	m.Files = nil
}

// Decode decodes data strictly: unknown fields and trailing bytes are refused.
func Decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%w: bytes after the value", ErrProtocol)
	}
	return nil
}

// Conn sends and receives messages. Receive is for one goroutine; Send for any number.
type Conn struct {
	unix *net.UnixConn

	sending sync.Mutex

	buffer   []byte     // received, not yet returned
	searched int        // bytes of it that hold no end of a line
	files    []*os.File // received, not yet claimed by a line
}

// NewConn wraps a connected unix stream socket.
func NewConn(c *net.UnixConn) *Conn { return &Conn{unix: c} }

// Close closes the socket, which ends a Receive under way.
func (c *Conn) Close() error { return c.unix.Close() }

// Send writes one message; its files are duplicated to the other end and stay
// open here.
func (c *Conn) Send(m Message) error {
	m.FileCount = len(m.Files)
	line, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	if len(line) >= MaxMessageBytes || len(m.Files) > MaxFiles {
		return fmt.Errorf("%w: message of %d bytes and %d files is too large", ErrProtocol, len(line), len(m.Files))
	}
	line = append(line, '\n')
	var rights []byte
	if len(m.Files) > 0 {
		fds := make([]int, len(m.Files))
		for i, f := range m.Files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	// An end that does not read must not hold up the other for ever.
	c.unix.SetWriteDeadline(time.Now().Add(sendTimeout))
	// The descriptors travel with the first byte; a short write of the rest
	// is completed without them.
	n, _, err := c.unix.WriteMsgUnix(line, rights, nil)
	if err == nil && n < len(line) {
		_, err = c.unix.Write(line[n:])
	}
	if err != nil {
		// Perhaps within a line: nothing sent after it would be understood.
		c.unix.Close()
		return fmt.Errorf("send message: %w", err)
	}
	return nil
}

// Receive returns the next message, io.EOF at the end of the stream, or an
// error that wraps ErrProtocol, after which the connection is of no more use.
func (c *Conn) Receive() (*Message, error) {
	m, err := c.receive()
	if err != nil {
		c.discard()
	}
	return m, err
}

// discard closes the files that came and that no message has claimed. It is
// for the goroutine that receives, when it will no more.
func (c *Conn) discard() {
	for _, f := range c.files {
		f.Close()
	}
	c.files = nil
}

// Refuse closes the connection for what was received last. It is for the
// goroutine that receives.
func (c *Conn) Refuse() {
	c.unix.Close()
	c.discard()
}

func (c *Conn) receive() (*Message, error) {
	for {
		i := bytes.IndexByte(c.buffer[c.searched:], '\n')
		if i >= 0 {
			i += c.searched
		}
		c.searched = len(c.buffer) // a line that trickles in is not searched anew with each byte
		if max(i, len(c.buffer)-1) >= MaxMessageBytes {
			return nil, fmt.Errorf("%w: message longer than %d bytes", ErrProtocol, MaxMessageBytes)
		}
		if i >= 0 {
			line := c.buffer[:i]
			m, err := c.parse(line)
			if err == nil {
				m.size = len(line)
			}
			c.buffer, c.searched = append([]byte(nil), c.buffer[i+1:]...), 0
			return m, err
		}
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
}

func (c *Conn) parse(line []byte) (*Message, error) {
	var m Message
	if err := Decode(line, &m); err != nil {
		return nil, err
	}
	kinds := 0
	for _, set := range []bool{m.Execute != "", m.Event != "", m.Return != nil, m.Error != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return nil, fmt.Errorf("%w: a message is one of execute, event, return and error", ErrProtocol)
	}
	if m.FileCount < 0 || m.FileCount > len(c.files) {
		return nil, fmt.Errorf("%w: message announces %d files, %d came", ErrProtocol, m.FileCount, len(c.files))
	}
	m.Files, c.files = c.files[:m.FileCount:m.FileCount], c.files[m.FileCount:]
	return &m, nil
}

func (c *Conn) fill() error {
	data := make([]byte, 4096)
	oob := make([]byte, unix.CmsgSpace(MaxFiles*4))
	n, oobn, flags, _, err := c.unix.ReadMsgUnix(data, oob)
	if errors.Is(err, io.EOF) {
		if len(c.buffer) > 0 {
			return io.ErrUnexpectedEOF
		}
		return io.EOF
	}
	if err != nil {
		return fmt.Errorf("receive message: %w", err)
	}
	if err := c.takeFiles(oob[:oobn]); err != nil {
		return err
	}
	if flags&unix.MSG_CTRUNC != 0 || len(c.files) > MaxFiles {
		return fmt.Errorf("%w: more than %d files", ErrProtocol, MaxFiles)
	}
	c.buffer = append(c.buffer, data[:n]...)
	return nil
}

func (c *Conn) takeFiles(oob []byte) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		for _, fd := range fds {
			// ReadMsgUnix asks for MSG_CMSG_CLOEXEC, so no child gets it by accident.
			c.files = append(c.files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return nil
}

// Client is the end that asks: it matches answers to calls by id and hands
// events to one function. It owns the reading goroutine.
type Client struct {
	conn    *Conn
	onEvent func(*Message)
	pace    *rate.Limiter

	mu      sync.Mutex
	nextID  uint64
	waiting map[uint64]chan *Message
	err     error

	done chan struct{}
}

// How much one launcher can have virt-handler read, in bytes a second and at
// once; a message counts as leastMessage at least. A launcher that sends more
// waits for room in its socket, and costs nobody else.
const (
	readRate     = 4 << 20
	readBurst    = 8 << 20
	leastMessage = 4 << 10
)

// ErrClosed is returned by calls on a connection that has ended.
var ErrClosed = errors.New("control connection closed")

// NewClient starts reading. onEvent is called from the reading goroutine, in
// order, and must not block on a Call; the files of an event are its own.
func NewClient(conn *Conn, onEvent func(*Message)) *Client {
	c := &Client{conn: conn, onEvent: onEvent, pace: rate.NewLimiter(readRate, readBurst), waiting: map[uint64]chan *Message{}, done: make(chan struct{})}
	go c.read()
	return c
}

func (c *Client) read() {
	defer close(c.done)
	for {
		m, err := c.conn.Receive()
		if err == nil && m.Execute != "" {
			m.Close()
			c.conn.Refuse()
			err = fmt.Errorf("%w: the launcher sends no commands", ErrProtocol)
		}
		if err != nil {
			c.end(err)
			return
		}
		if delay := c.pace.ReserveN(time.Now(), max(m.size, leastMessage)).Delay(); delay > 0 {
			<-time.After(delay) // a fraction of a second
		}
		if m.Event != "" {
			c.onEvent(m)
			continue
		}
		c.mu.Lock()
		answer := c.waiting[m.ID]
		delete(c.waiting, m.ID)
		if answer != nil {
			// Under the lock: who gives up waiting looks for it once more.
			answer <- m
		}
		c.mu.Unlock()
		if answer == nil {
			m.Close()
		}
	}
}

func (c *Client) end(err error) {
	c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for id, answer := range c.waiting {
		close(answer)
		delete(c.waiting, id)
	}
}

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err says why the connection ended: io.EOF if the other end closed it.
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

// Call sends a command and waits for its answer. A *RemoteError is the other
// end's; any other error is the connection's or ctx's.
func (c *Client) Call(ctx context.Context, command string, arguments, result any, files ...*os.File) error {
	m, err := c.ask(ctx, command, arguments, files)
	if err != nil {
		return err
	}
	m.Close() // nobody asked for files
	if result == nil {
		return nil
	}
	return Decode(m.Return, result)
}

// CallForFile sends a command without arguments whose answer is one file.
func (c *Client) CallForFile(ctx context.Context, command string) (*os.File, error) {
	m, err := c.ask(ctx, command, nil, nil)
	if err != nil {
		return nil, err
	}
	if len(m.Files) != 1 {
		m.Close()
		return nil, fmt.Errorf("%s: %w: the answer has %d files, want one", command, ErrProtocol, m.FileCount)
	}
	return m.Files[0], nil
}

// ask sends a command and waits for its answer, which is no error and whose
// files the caller closes.
func (c *Client) ask(ctx context.Context, command string, arguments any, files []*os.File) (*Message, error) {
	data, err := json.Marshal(arguments)
	if err != nil {
		return nil, fmt.Errorf("encode arguments of %s: %w", command, err)
	}
	answer := make(chan *Message, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, fmt.Errorf("%s: %w: %w", command, ErrClosed, c.err)
	}
	c.nextID++
	id := c.nextID
	c.waiting[id] = answer
	c.mu.Unlock()
	if err := c.conn.Send(Message{Execute: command, ID: id, Data: data, Files: files}); err != nil {
		c.giveUp(id, answer)
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	select {
	case m, ok := <-answer:
		switch {
		case !ok:
			return nil, fmt.Errorf("%s: %w: %w", command, ErrClosed, c.Err())
		case m.Error != nil:
			m.Close()
			return nil, fmt.Errorf("%s: %w", command, m.Error)
		}
		return m, nil
	case <-ctx.Done():
		c.giveUp(id, answer)
		return nil, fmt.Errorf("%s: %w", command, ctx.Err())
	}
}

// giveUp forgets a call, and the files of an answer that came meanwhile.
func (c *Client) giveUp(id uint64, answer <-chan *Message) {
	c.mu.Lock()
	delete(c.waiting, id)
	c.mu.Unlock()
	select {
	case m := <-answer:
		if m != nil { // nil: the connection ended
			m.Close()
		}
	default:
	}
}
