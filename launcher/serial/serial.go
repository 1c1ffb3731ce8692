// Package serial shares a guest's serial port between the pod's log and a console.
package serial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/timer"
	"github.com/kubeqemu/kubeqemu/launcher/podlog"
)

// Bounds of the guest's serial output.
const (
	// LogBytesPerSecond and LogBurst limit the output that goes to the pod's log: a guest must
	// not fill the node's disk or load its log collector.
	LogBytesPerSecond = 64 << 10
	LogBurst          = 1 << 20
	// readerBytes is how far a reader may be behind before output is dropped. Bytes are
	// counted, not reads: QEMU often hands over one byte at a time.
	readerBytes = 256 << 10
	chunkBytes  = 4096
)

const (
	// drainTimeout bounds how long the end of a port or a console waits for output on its way.
	drainTimeout = time.Second
	// acceptDelay is the pause after a failure to accept a connection: too many files are
	// open, perhaps, and the next moment some are not.
	acceptDelay = time.Second
)

// Port is QEMU's only client on the serial port. It copies the guest's output to the
// pod's log and to one attached console, and the console's input to the guest. A
// slow reader loses output; the guest never waits.
type Port struct {
	port     *net.UnixConn
	listener *net.UnixListener

	mu      sync.Mutex
	console *console      // nil while nobody is attached
	typing  chan struct{} // closed when nobody writes to the port any more
	ended   bool          // QEMU has closed the port

	podLog  *podlog.Log
	log     *slog.Logger
	closing context.CancelFunc
	wait    sync.WaitGroup
}

// console is one attached reader.
type console struct {
	conn net.Conn

	mu      sync.Mutex
	pending []byte        // not yet written
	ended   bool          // nothing follows
	more    chan struct{} // pending or ended changed
}

func newConsole(conn net.Conn) *console {
	return &console{conn: conn, more: make(chan struct{}, 1)}
}

// add queues output, or drops it where the reader is too far behind.
func (c *console) add(chunk []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || len(c.pending)+len(chunk) > readerBytes {
		return
	}
	c.pending = append(c.pending, chunk...)
	c.signal()
}

// close gives queued output a while to be written, and then hangs up.
func (c *console) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	c.conn.SetReadDeadline(time.Now())
	c.conn.SetWriteDeadline(time.Now().Add(drainTimeout))
	c.signal()
}

func (c *console) signal() {
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// write writes what is queued until the console has ended or cannot be written to.
func (c *console) write() error {
	for range c.more {
		c.mu.Lock()
		pending, ended := c.pending, c.ended
		c.pending = nil
		c.mu.Unlock()
		if len(pending) > 0 {
			if _, err := c.conn.Write(pending); err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
	}
	return nil
}

// New takes the port, and listens for consoles on a socket.
func New(port *net.UnixConn, socket string, stdout io.Writer, log *slog.Logger) (*Port, error) {
	os.Remove(socket)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for consoles: %w", err)
	}
	nobody := make(chan struct{})
	close(nobody)
	s := &Port{port: port, listener: listener, typing: nobody, log: log,
		podLog: podlog.New(stdout, "console output", LogBytesPerSecond, LogBurst, log)}
	s.wait.Add(2)
	go s.read()
	ctx, cancel := context.WithCancel(context.Background())
	s.closing = cancel
	go s.accept(ctx)
	return s, nil
}

// Close ends all goroutines. What the guest wrote before is still logged.
func (s *Port) Close() {
	// QEMU has exited: its last output is still read. But some other process may hold QEMU's
	// descriptor open, so the wait is short. The console ends with the port.
	s.port.SetReadDeadline(time.Now().Add(drainTimeout))
	s.closing()
	s.listener.Close()
	s.wait.Wait()
	s.port.Close()
	s.podLog.Close()
}

func (s *Port) read() {
	defer s.wait.Done()
	defer s.end()
	chunk := make([]byte, chunkBytes)
	for {
		n, err := s.port.Read(chunk)
		if n > 0 {
			s.deliver(chunk[:n])
		}
		if err != nil {
			return
		}
	}
}

func (s *Port) deliver(chunk []byte) {
	s.podLog.Write(chunk)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.console != nil {
		s.console.add(chunk)
	}
}

// attach makes c the console and ends the previous console, as KubeVirt does. After QEMU's end
// c ends at once.
func (s *Port) attach(c *console) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.console != nil {
		s.console.close()
	}
	s.console = c
	if s.ended && c != nil {
		s.console = nil
		c.close()
	}
}

// end ends the console: QEMU has ended, and nothing follows.
func (s *Port) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.attach(nil)
}

// detach ends c if it still is the console.
func (s *Port) detach(c *console) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.console == c {
		s.console = nil
		c.close()
	}
}

func (s *Port) accept(ctx context.Context) {
	defer s.wait.Done()
	for {
		conn, err := s.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			s.log.Warn("accept console", "error", err)
			timer.Wait(acceptDelay, ctx.Done())
		default:
			s.Connect(conn)
		}
	}
}

// Connect makes a connection the console.
func (s *Port) Connect(conn net.Conn) {
	c := newConsole(conn)
	s.attach(c)
	s.wait.Go(func() {
		defer conn.Close()
		if c.write() != nil {
			s.detach(c)
		}
	})
	before, done := s.typist()
	go func() {
		defer close(done)
		<-before
		s.port.SetWriteDeadline(time.Time{})
		io.Copy(s.port, conn)
		s.detach(c)
	}()
}

// typist makes the caller the next to write to the port: once before is closed, and until the
// caller closes done. A writer that still waits for a guest that does not read gives up:
// otherwise each console would leave one more of them.
func (s *Port) typist() (before <-chan struct{}, done chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, done = s.typing, make(chan struct{})
	s.typing = done
	s.port.SetWriteDeadline(time.Now())
	return before, done
}
