package subresources

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// TestCutStreamEndsAbnormally: the client of a console that was cut, because somebody else has opened it, loses its connection without a close
// frame. One whose guest has ended gets a close frame, and so does a page, whose browser would connect again.
func TestCutStreamEndsAbnormally(t *testing.T) {
	for name, c := range map[string]struct {
		cut, tells bool
		want       int
	}{
		"cut":                      {true, true, websocket.CloseAbnormalClosure},
		"cut, of a page or a port": {true, false, websocket.CloseNormalClosure},
		"the guest's end":          {false, true, websocket.CloseNormalClosure},
	} {
		near, far := pair(t)
		s := serve(t)
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.server.splice(r.Context(), w, &call{Request: r}, stream{Conn: near, buffer: streamBuffer, patience: streamPatience, cutWithGuest: c.tells})
		}))
		defer front.Close()
		dialer := websocket.Dialer{TLSClientConfig: &tls.Config{}, Subprotocols: []string{subprotocol}}
		client, _, err := dialer.Dial(strings.Replace(front.URL, "http", "ws", 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if c.cut {
			if err := far.SetLinger(0); err != nil {
				t.Fatal(err)
			}
		}
		far.Close()
		_ = client.SetReadDeadline(time.Now().Add(testkit.Patience))
		var closed *websocket.CloseError
		if _, _, err := client.ReadMessage(); !errors.As(err, &closed) || closed.Code != c.want {
			t.Errorf("%s: %v, want %d", name, err, c.want)
		}
	}
}

// torn is the guest's end of a stream that breaks off while the client writes. One direction hears of it late: not
// before somebody ends all reads and writes.
type torn struct {
	net.Conn
	read, write error // what the directions hear
	readsLate   bool
	hasWritten  chan struct{}
	over        chan struct{}
	end         func()
}

func (c *torn) Read([]byte) (int, error) {
	<-c.hasWritten
	if c.readsLate {
		<-c.over
	}
	return 0, c.read
}

func (c *torn) Write([]byte) (int, error) {
	close(c.hasWritten)
	if !c.readsLate {
		<-c.over
	}
	return 0, c.write
}

func (c *torn) Close() error                     { c.end(); return nil }
func (c *torn) SetDeadline(time.Time) error      { c.end(); return nil }
func (c *torn) SetWriteDeadline(time.Time) error { return nil }

// TestCutIsKnownWhicheverDirectionHearsOfIt: the kernel tells one direction alone of a reset, which may be either,
// and the other direction may have ended the stream before.
func TestCutIsKnownWhicheverDirectionHearsOfIt(t *testing.T) {
	reset, pipe := &net.OpError{Op: "write", Err: syscall.ECONNRESET}, &net.OpError{Op: "write", Err: syscall.EPIPE}
	for name, c := range map[string]struct {
		guest *torn
		want  int
	}{
		"a write, after the read has ended":  {&torn{read: io.EOF, write: reset}, websocket.CloseAbnormalClosure},
		"a read, after the write has failed": {&torn{read: reset, write: pipe, readsLate: true}, websocket.CloseAbnormalClosure},
		"an end in order":                    {&torn{read: io.EOF, write: pipe}, websocket.CloseNormalClosure},
		"an end in order that is read late":  {&torn{read: io.EOF, write: pipe, readsLate: true}, websocket.CloseNormalClosure},
	} {
		c.guest.hasWritten, c.guest.over = make(chan struct{}), make(chan struct{})
		c.guest.end = sync.OnceFunc(func() { close(c.guest.over) })
		s := serve(t)
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.server.splice(r.Context(), w, &call{Request: r}, stream{Conn: c.guest, buffer: streamBuffer, patience: streamPatience, cutWithGuest: true})
		}))
		defer front.Close()
		dialer := websocket.Dialer{Subprotocols: []string{subprotocol}}
		client, _, err := dialer.Dial(strings.Replace(front.URL, "http", "ws", 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if err := client.WriteMessage(websocket.BinaryMessage, []byte("a key")); err != nil {
			t.Fatal(err)
		}
		_ = client.SetReadDeadline(time.Now().Add(testkit.Patience))
		var closed *websocket.CloseError
		if _, _, err := client.ReadMessage(); !errors.As(err, &closed) || closed.Code != c.want {
			t.Errorf("%s: %v, want %d", name, err, c.want)
		}
	}
}

// noted is a guest's end that notes that it was written to.
type noted struct {
	net.Conn
	written bool
}

func (*noted) Read([]byte) (int, error)         { return 0, io.EOF }
func (c *noted) Write(p []byte) (int, error)    { c.written = true; return len(p), nil }
func (*noted) SetWriteDeadline(time.Time) error { return nil }

// TestNoWriteComesBeforeTheFirstRead: a write that fails at once would end the stream while nobody reads yet, who
// alone might hear of a reset.
func TestNoWriteComesBeforeTheFirstRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &noted{}
		guest := &end{stream: stream{Conn: conn}, reads: make(chan struct{})}
		go guest.Write([]byte("a key"))
		synctest.Wait()
		if conn.written {
			t.Error("it was written to before it was read")
		}
		if _, err := guest.Read(nil); err != io.EOF {
			t.Errorf("the read says %v", err)
		}
		synctest.Wait()
		if !conn.written {
			t.Error("it was not written to after it was read")
		}
	})
}

// late is the guest's end of a stream that takes nothing. It begins what ends the stream as soon as a write wants its
// deadline, and sets that deadline last.
type late struct {
	net.Conn
	wantsDeadline, ended chan struct{}
}

func (c *late) SetWriteDeadline(t time.Time) error {
	close(c.wantsDeadline)
	<-c.ended
	return c.Conn.SetWriteDeadline(t)
}

func (c *late) SetDeadline(t time.Time) error {
	defer close(c.ended)
	return c.Conn.SetDeadline(t)
}

// TestWriteThatBeginsAtTheEndEnds: also if its own deadline comes after the one that ends all reads and writes.
func TestWriteThatBeginsAtTheEndEnds(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	conn := &late{near, make(chan struct{}), make(chan struct{})}
	guest := &end{stream: stream{Conn: conn, buffer: streamBuffer, patience: time.Hour}, reads: make(chan struct{})}
	guest.first.Do(func() { close(guest.reads) })
	defer guest.Close()
	wrote := make(chan error, 1)
	go func() {
		_, err := guest.Write([]byte("a key"))
		wrote <- err
	}()
	<-conn.wantsDeadline
	cut := make(chan bool, 1)
	go func() { cut <- guest.wasCut() }()
	if testkit.Receive(t, cut, "whether the stream was cut") {
		t.Error("it was cut")
	}
	if err := testkit.Receive(t, wrote, "the end of the write"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the write: %v", err)
	}
}

// pair returns the two ends of a TCP connection.
func pair(t *testing.T) (near net.Conn, far *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if near, err = net.Dial("tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return near, accepted.(*net.TCPConn)
}
