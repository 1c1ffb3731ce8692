// Package intake bounds what peers cost that nobody knows yet: their connections,
// what they send before a request is whole, the bodies of their requests.
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
)

// Bounds of what is read of a peer that is not known, in bytes.
const (
	// maxFirst is for a TLS handshake, with certificates, of which crypto/tls alone
	// would take 256 KiB.
	maxFirst = 24 << 10
	// maxHead is for the head of a request. One of many short fields takes twenty
	// times its size.
	maxHead = 8 << 10
)

// Listener takes a number of connections of peers that are not known. When there
// are more, the address with most of them loses the one that has been idle or
// incomplete for longest. A known peer's connection (Vouch) is not counted.
type Listener struct {
	net.Listener
	places Budget
}

// Listen bounds a listener.
func Listen(inner net.Listener, strangers int) *Listener {
	return &Listener{Listener: inner, places: Budget{Size: int64(strangers), Renews: true}}
}

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	now, cancel := context.WithCancel(context.Background())
	cancel() // whoever gives way does so at once
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

// Source is the host of an address, which is the key of what its peer may have.
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
	// named says that its certificate is a known peer's. Until a request came through,
	// which nobody encrypts without the certificate's key, that proves nothing.
	named atomic.Bool
	// free says that a request is being served: what is read of its body is
	// bounded by whoever reads it.
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

// giveWay ends it without a word: there may be nobody to take one.
func (c *Conn) giveWay() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}

// vouch makes its peer a known one.
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

// progress follows what net/http does with it.
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
	for conn != nil {
		if c, ok := conn.(*Conn); ok {
			return c
		}
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		conn = outer.NetConn()
	}
	return nil
}

// Known returns a configuration with which a peer is known from its first request
// on, if its certificate is one's. VerifyConnection comes before the peer has shown
// that it has the certificate's key: others may have seen the certificate.
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
