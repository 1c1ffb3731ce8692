package serve

import (
	"errors"
	"net"
	"slices"
	"sync"
)

// connections are the peer's. A pod of a tenant may stand in the peer's place, so they are bounded too.
type connections struct {
	most int

	mu sync.Mutex
	// open begins with the oldest.
	open []net.Conn
}

// add ends the oldest connection if there are too many.
func (c *connections) add(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.open, conn) {
		return
	}
	if c.open = append(c.open, conn); len(c.open) > c.most {
		// Close would wait for a peer that takes nothing.
		if below, ok := c.open[0].(interface{ NetConn() net.Conn }); ok {
			below.NetConn().Close()
		}
		c.open = slices.Delete(c.open, 0, 1)
	}
}

func (c *connections) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = slices.DeleteFunc(c.open, func(o net.Conn) bool { return o == conn })
}

// errPlain fails a connection that does not begin with TLS.
var errPlain = errors.New("the other side does not speak TLS")

// tlsAlone gives no answer to whoever does not speak TLS. net/http would answer such a request with an error.
type tlsAlone struct{ net.Listener }

// Accept waits for the next connection.
func (l tlsAlone) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &tlsConn{Conn: conn}, nil
}

// tlsConn is a connection that begins with a record of TLS's handshake.
type tlsConn struct {
	net.Conn
	begun bool
}

// NetConn is the connection itself.
func (c *tlsConn) NetConn() net.Conn { return c.Conn }

func (c *tlsConn) Read(p []byte) (int, error) {
	const handshake = 22
	n, err := c.Conn.Read(p)
	if n > 0 && !c.begun {
		if c.begun = true; p[0] != handshake {
			return 0, errPlain
		}
	}
	return n, err
}
