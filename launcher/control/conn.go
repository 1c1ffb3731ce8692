package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/jsonsize"
)

// sendTimeout bounds one Send.
const sendTimeout = 10 * time.Second

// MaxMessageBytes bounds a message. Each end refuses longer messages of the other.
const MaxMessageBytes = 1 << 20

// maxUnclaimed is how many received files of a launcher may belong to no message yet. A
// launcher's message brings one file at most.
const maxUnclaimed = 2

// Message is one line. Exactly one of Execute, Event, Return and Error is set.
type Message struct {
	Execute string
	Event   string
	ID      uint64
	Data    json.RawMessage // arguments, event data
	Return  json.RawMessage
	Error   *RemoteError
	// Files go with the message, each under a name of its own. The receiver closes them.
	Files []File

	// The descriptors of a launcher's message and their names, until the kind of each
	// descriptor has been checked.
	names       []string
	descriptors []descriptor
	size        int // of the line that was received
}

// line is a Message as it is sent.
type line struct {
	Execute string          `json:"execute,omitempty"`
	Event   string          `json:"event,omitempty"`
	ID      uint64          `json:"id,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"`
	Return  json.RawMessage `json:"return,omitempty"`
	Error   *RemoteError    `json:"error,omitempty"`
	// Files are the names of the message's files, in the descriptors' order.
	Files json.RawMessage `json:"files,omitempty"`
}

// RemoteError is an error that the other end answered with.
type RemoteError struct {
	Description string `json:"desc"`
}

func (e *RemoteError) Error() string { return e.Description }

// Close closes the message's files.
func (m *Message) Close() {
	for _, f := range m.Files {
		f.Close()
	}
	m.Files = nil
}

// Conn sends and receives messages. Receive is for one goroutine; Send for any number.
type Conn struct {
	unix    *net.UnixConn
	sending sync.Mutex

	// closer is set if the other end is a launcher, and closes that launcher's files.
	closer *Closer
	ended  sync.Once
	limit  atomic.Int64 // of a line that is received, in bytes

	buffer      []byte       // received, not yet returned
	searched    int          // bytes of it that hold no end of a line
	descriptors []descriptor // received, not yet claimed by a line
}

// NewConn wraps a connected unix stream socket.
func NewConn(c *net.UnixConn) *Conn {
	conn := &Conn{unix: c}
	conn.limit.Store(MaxMessageBytes)
	return conn
}

// PeerPID returns the process that dialed, by the kernel's word, in the PID namespace of this process. It is 0 for a
// process of another namespace.
func (c *Conn) PeerPID() int {
	raw, err := c.unix.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	})
	return pid
}

// Close closes the socket, which ends a Receive under way.
func (c *Conn) Close() (err error) {
	if c.closer == nil {
		return c.unix.Close()
	}
	c.ended.Do(func() {
		hangUp(c.unix)
		c.closer.Close(c.unix)
	})
	return nil
}

// Send writes one message; its files are duplicated to the other end and stay
// open here.
func (c *Conn) Send(m Message) error {
	if len(m.Files) > MaxFiles {
		return fmt.Errorf("%w: %d files are more than a message takes", ErrProtocol, len(m.Files))
	}
	out := line{Execute: m.Execute, Event: m.Event, ID: m.ID, Data: m.Data, Return: m.Return, Error: m.Error}
	var rights []byte
	if len(m.Files) > 0 {
		names, numbers := make([]string, len(m.Files)), make([]int, len(m.Files))
		for i, f := range m.Files {
			names[i], numbers[i] = f.Name, int(f.Fd())
		}
		if err := checkNames(names); err != nil {
			return err
		}
		out.Files, _ = json.Marshal(names) // strings can always be encoded
		rights = unix.UnixRights(numbers...)
	}
	text, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	if len(text) >= MaxMessageBytes {
		return fmt.Errorf("%w: a message of %d bytes is too large", ErrProtocol, len(text))
	}
	text = append(text, '\n')
	c.sending.Lock()
	defer c.sending.Unlock()
	// An end that does not read must not hold up the other for ever.
	c.unix.SetWriteDeadline(time.Now().Add(sendTimeout))
	// The descriptors travel with the first byte; a short write of the rest
	// is completed without them.
	n, _, err := c.unix.WriteMsgUnix(text, rights, nil)
	if err == nil && n < len(text) {
		_, err = c.unix.Write(text[n:])
	}
	if err != nil {
		// The failure may be within a line: nothing sent after it would be understood.
		c.Close()
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
		return nil, err
	}
	if c.closer == nil {
		for i, d := range m.descriptors {
			m.Files = append(m.Files, File{m.names[i], os.NewFile(uintptr(d), m.names[i])})
		}
		m.descriptors = nil
	}
	return m, nil
}

// discard closes received files that no message has claimed. Only the receiving goroutine
// calls it, when it receives no more.
func (c *Conn) discard() {
	c.drop(c.descriptors)
	c.descriptors = nil
}

// drop closes files of an unknown kind.
func (c *Conn) drop(files []descriptor) {
	if c.closer != nil {
		c.closer.Close(closers(files)...)
		return
	}
	for _, f := range files {
		f.Close()
	}
}

// Refuse closes the connection because of what was received last. Only the receiving goroutine
// may call it.
func (c *Conn) Refuse() {
	c.Close()
	c.discard()
}

func (c *Conn) receive() (*Message, error) {
	for {
		i := bytes.IndexByte(c.buffer[c.searched:], '\n')
		if i >= 0 {
			i += c.searched
		}
		c.searched = len(c.buffer) // a line that trickles in is not searched anew with each byte
		if limit := int(c.limit.Load()); max(i, len(c.buffer)-1) >= limit {
			return nil, fmt.Errorf("%w: message longer than %d bytes", ErrProtocol, limit)
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

// parse accepts unknown fields in answers and events, which a newer peer may send, and refuses
// them in commands.
func (c *Conn) parse(text []byte) (*Message, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	kinds := 0
	for _, set := range []bool{l.Execute != "", l.Event != "", l.Return != nil, l.Error != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return nil, fmt.Errorf("%w: a message is one of execute, event, return and error", ErrProtocol)
	}
	if l.Execute != "" {
		if err := Decode(text, &line{}); err != nil {
			return nil, err
		}
	}
	m := &Message{Execute: l.Execute, Event: l.Event, ID: l.ID, Data: l.Data, Return: l.Return, Error: l.Error}
	if l.Files != nil {
		if jsonsize.Values(l.Files) > MaxFiles+2 {
			return nil, fmt.Errorf("%w: message announces too many files", ErrProtocol)
		}
		if err := json.Unmarshal(l.Files, &m.names); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
		}
	}
	if err := checkNames(m.names); err != nil {
		return nil, err
	}
	n := len(m.names)
	if n > len(c.descriptors) {
		return nil, fmt.Errorf("%w: message announces %d files, %d came", ErrProtocol, n, len(c.descriptors))
	}
	m.descriptors, c.descriptors = c.descriptors[:n:n], c.descriptors[n:]
	return m, nil
}

// fill waits until something has come, and takes it.
func (c *Conn) fill() error {
	raw, err := c.unix.SyscallConn()
	if err != nil {
		return fmt.Errorf("receive message: %w", err)
	}
	var taken error
	err = raw.Read(func(socket uintptr) bool {
		taken = c.take(int(socket))
		return !errors.Is(taken, unix.EAGAIN)
	})
	if c.closer != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		err = net.ErrClosed // hangUp has set the deadline
	}
	if err == nil {
		err = taken
	}
	if err == nil || err == io.EOF || errors.Is(err, ErrProtocol) {
		return err
	}
	return fmt.Errorf("receive message: %w", err)
}

// take takes what has come, or returns EAGAIN. Its room is on the stack only meanwhile:
// virt-handler has a goroutine for each launcher, which hardly ever gets a message.
func (c *Conn) take(socket int) error {
	var data [4096]byte
	oob := make([]byte, unix.CmsgSpace(MaxFiles*4))
	n, oobn, flags, _, err := unix.Recvmsg(socket, data[:], oob, unix.MSG_CMSG_CLOEXEC)
	for errors.Is(err, unix.EINTR) {
		n, oobn, flags, _, err = unix.Recvmsg(socket, data[:], oob, unix.MSG_CMSG_CLOEXEC)
	}
	switch {
	case err != nil:
		return err
	case n == 0 && len(c.buffer) > 0:
		return io.ErrUnexpectedEOF
	case n == 0:
		return io.EOF
	}
	files, err := received(oob[:oobn])
	c.descriptors = append(c.descriptors, files...)
	most := MaxFiles
	if c.closer != nil {
		most = maxUnclaimed
	}
	if err == nil && (flags&unix.MSG_CTRUNC != 0 || len(c.descriptors) > most) {
		err = fmt.Errorf("%w: more than %d files", ErrProtocol, most)
	}
	if err != nil {
		return err
	}
	c.buffer = append(c.buffer, data[:n]...)
	return nil
}
