// Package batch carries many TLS records with one system call. A record holds at most 16 KiB (RFC 8446, 5.1), and
// crypto/tls reads and writes one record at a time. A stream of some hundred megabytes a second spends more time in
// such calls than with the records themselves.
package batch

import (
	"bufio"
	"net"
	"sync"

	"github.com/kubeqemu/kubeqemu/internal/layers"
)

// Record is more than a TLS record has, in bytes: 16 KiB, a byte for the type, and what the cipher and the header add (at most
// 255 and 5 bytes).
const Record = 16<<10 + 1 + 255 + 5

// Conn is a connection beneath TLS. Before Begin it is as the connection itself.
type Conn struct {
	net.Conn
	reader *bufio.Reader // nil before Begin

	mu  sync.Mutex
	out []byte // what waits for Flush; nil before Begin
}

// New makes a Conn of a connection.
func New(inner net.Conn) *Conn { return &Conn{Conn: inner} }

// Of returns the Conn beneath a connection, or nil if there is none.
func Of(conn net.Conn) *Conn {
	c, _ := layers.Find[*Conn](conn)
	return c
}

// NetConn is the connection itself.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Begin has a read fetch up to size bytes, and a write wait for Flush, or until size bytes wait. Nothing may read or
// write meanwhile.
func (c *Conn) Begin(size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reader = bufio.NewReaderSize(c.Conn, size)
	c.out = make([]byte, 0, size)
}

// More says whether the next record has come as a whole, so that reading it does not wait.
func (c *Conn) More() bool { return c.reader != nil && c.reader.Buffered() >= Record }

func (c *Conn) Read(p []byte) (int, error) {
	if c.reader == nil {
		return c.Conn.Read(p)
	}
	return c.reader.Read(p)
}

func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out == nil {
		return c.Conn.Write(p)
	}
	if len(c.out)+len(p) > cap(c.out) {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	if len(p) > cap(c.out) {
		return c.Conn.Write(p)
	}
	c.out = append(c.out, p...)
	return len(p), nil
}

// Flush writes what waits.
func (c *Conn) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flush()
}

func (c *Conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.Conn.Write(c.out)
	c.out = c.out[:0]
	return err
}

// Listener makes a Conn of each connection.
type Listener struct{ net.Listener }

// Accept waits for the next connection.
func (l Listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return New(conn), nil
}
