// Package intake bounds what strangers cost, which are peers that are not known yet: their
// connections, the bytes that they send before a request is whole, and the bodies of their
// requests. A peer becomes known by its certificate (Known), or by Vouch.
package intake

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/kubeqemu/kubeqemu/internal/layers"
)

// Bounds of what is read from a peer that is not known, in bytes.
const (
	// maxFirst is for a TLS handshake with certificates. crypto/tls alone would read 256 KiB.
	maxFirst = 24 << 10
	// maxHead is for the head of a request. A head of many short fields takes twenty times its
	// size in memory.
	maxHead = 8 << 10
)

// Listener takes a number of connections from peers that are not known. When there are more,
// the address with most of them loses the connection that has been idle or incomplete for
// longest. Connections of known peers (Vouch) do not count.
type Listener struct {
	net.Listener
	places Budget
}

// Listen bounds a listener to so many connections of strangers.
func Listen(inner net.Listener, strangers int) *Listener {
	return &Listener{Listener: inner, places: Budget{Size: int64(strangers), Renews: true}}
}

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	now, cancel := context.WithCancel(context.Background())
	cancel() // a connection that gives way does so at once
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Conn{Conn: accepted}
		c.most.Store(maxFirst)
		c.mu.Lock()
		c.hold, err = l.places.Take(now, Source(accepted.RemoteAddr().String()), 1, c.giveWay)
		c.mu.Unlock()
		if err == nil {
			return c, nil
		}
		accepted.Close()
	}
}

// Source is the host of an address host:port. It is the peer's key in a Budget.
func Source(address string) string {
	if a, err := netip.ParseAddrPort(address); err == nil {
		return a.Addr().Unmap().WithZone("").String()
	}
	return address
}

// Conn is a connection of a Listener's.
type Conn struct {
	net.Conn
	known atomic.Bool
	// named says that the certificate is a known peer's. That proves nothing before a request
	// came through: only a peer with the certificate's key can encrypt one.
	named atomic.Bool
	// free says that a request is being served: the reader of its body bounds the bytes.
	free atomic.Bool
	read atomic.Int64 // since the last request
	most atomic.Int64

	mu   sync.Mutex
	hold *Hold
}

var errTooMuch = errors.New("a peer that is not known sends too much before a request is whole")

func (c *Conn) Read(p []byte) (int, error) {
	if c.known.Load() || c.free.Load() {
		return c.Conn.Read(p)
	}
	left := c.most.Load() - c.read.Load()
	if left <= 0 {
		return 0, errTooMuch
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), left)])
	c.read.Add(int64(n))
	return n, err
}

// Close ends the connection.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}

// NetConn is the connection itself.
func (c *Conn) NetConn() net.Conn { return c.Conn }

func (c *Conn) release() {
	c.mu.Lock()
	hold := c.hold
	c.mu.Unlock()
	if hold != nil {
		hold.Release()
	}
}

// giveWay resets the connection: the peer may not be there to take a proper end.
func (c *Conn) giveWay() {
	if tcp, ok := layers.Find[*net.TCPConn](c.Conn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}

// vouch makes the connection's peer a known one.
func (c *Conn) vouch() {
	c.known.Store(true)
	c.release()
}

func (c *Conn) expectHead() {
	c.read.Store(0)
	if c.named.Load() {
		c.most.Store(maxKnownHead)
	} else {
		c.most.Store(maxHead)
	}
}

// progress follows the connection's state in net/http.
func (c *Conn) progress(state http.ConnState) {
	switch state {
	case http.StateActive, http.StateHijacked: // the head is whole
		c.free.Store(true)
		if c.named.Load() {
			c.vouch()
		}
	case http.StateIdle:
		c.expectHead()
		c.free.Store(false)
	default:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hold != nil {
		c.hold.Touch()
	}
}

// of finds the Conn below a connection.
func of(conn net.Conn) *Conn {
	c, _ := layers.Find[*Conn](conn)
	return c
}

// Known returns a configuration that makes a peer known from its first request on, if known
// accepts its certificate. crypto/tls calls VerifyConnection before the peer has proved that it
// has the certificate's key, and others may have seen the certificate; so the handshake alone
// makes no peer known.
func Known(config *tls.Config, known func(tls.ConnectionState) bool) *tls.Config {
	outer := config.Clone()
	outer.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		conn := of(hello.Conn)
		if conn == nil {
			return nil, nil
		}
		own := config.Clone()
		own.VerifyConnection = func(state tls.ConnectionState) error {
			if config.VerifyConnection != nil {
				if err := config.VerifyConnection(state); err != nil {
					return err
				}
			}
			conn.named.Store(known(state))
			conn.expectHead()
			return nil
		}
		return own, nil
	}
	return outer
}

type connKey struct{}

// Vouch makes the peer of a request a known one, for as long as its connection
// lasts.
func Vouch(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*Conn); ok {
		c.vouch()
	}
}

// Vouched says whether the peer of a request is known.
func Vouched(ctx context.Context) bool {
	c, ok := ctx.Value(connKey{}).(*Conn)
	return ok && c.known.Load()
}
