package peers

import (
	"context"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/kubeqemu/kubeqemu/internal/batch"
	"github.com/kubeqemu/kubeqemu/internal/layers"
)

const (
	// buffer is how much a relay holds of each direction, in bytes.
	buffer = 128 << 10
	// unsent is how much the kernel holds that TCP has not sent yet, in bytes. Without it that is as much as
	// net.ipv4.tcp_wmem permits, 4 MiB. A link of 1 Gbit/s needs 30 ms for so much, and the guest stands still while the
	// last of it goes. What TCP has sent is not bounded: a long way needs much.
	unsent = 256 << 10
)

// Pace bounds what all channels of a migration carry in a second, for each direction. QEMU keeps the bound by itself.
// But QEMU is a tenant's, and the link between two nodes is everybody's. A nil Pace is no bound.
type Pace struct{ there, back *rate.Limiter }

// NewPace makes a Pace. 0 bytes a second are no bound.
func NewPace(bytesPerSecond int64) *Pace {
	if bytesPerSecond <= 0 {
		return nil
	}
	// QEMU sends a tenth of a second's bytes at once (migration/options.c, migrate_max_bandwidth).
	burst := int(min(max(bytesPerSecond/10, buffer), 1<<30))
	return &Pace{rate.NewLimiter(rate.Limit(bytesPerSecond), burst), rate.NewLimiter(rate.Limit(bytesPerSecond), burst)}
}

// paced reads no faster than a limiter lets it.
type paced struct {
	io.Reader
	ctx     context.Context
	limiter *rate.Limiter
}

func (p *paced) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b[:min(len(b), buffer)])
	if wait := p.limiter.WaitN(p.ctx, n); wait != nil {
		return 0, wait
	}
	return n, err
}

// Relay carries bytes between two connections until one of them ends, or ctx, and closes both. The bytes from here
// count for one direction of the pace, and the bytes from there for the other.
func Relay(ctx context.Context, here, there net.Conn, pace *Pace) {
	ctx, cancel := context.WithCancel(ctx)
	for _, conn := range []net.Conn{here, there} {
		if b := batch.Of(conn); b != nil {
			b.Begin(buffer)
		}
		if tcp, ok := layers.Find[*net.TCPConn](conn); ok {
			keepShort(tcp)
		}
	}
	end := sync.OnceFunc(func() {
		cancel()
		for _, conn := range []net.Conn{here, there} {
			// TLS sends a last record when it closes, and waits up to 5 s for a peer that reads nothing more. So Relay closes
			// the TCP connection first.
			if b := batch.Of(conn); b != nil {
				b.Conn.Close()
			}
			conn.Close()
		}
	})
	defer context.AfterFunc(ctx, end)()
	var both sync.WaitGroup
	carry := func(to, from net.Conn, limiter *rate.Limiter) {
		defer end()
		reader := io.Reader(from)
		if limiter != nil {
			reader = &paced{from, ctx, limiter}
		}
		_ = carryOver(to, reader, batch.Of(to), batch.Of(from))
	}
	if pace == nil {
		pace = &Pace{}
	}
	both.Go(func() { carry(there, here, pace.there) })
	both.Go(func() { carry(here, there, pace.back) })
	both.Wait()
}

// keepShort lets a connection hold no more than unsent. An error is of a connection that has ended, which reads and
// writes say too.
func keepShort(conn *net.TCPConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent) })
}

// carryOver carries bytes until an end. TLS records that have come already go on together. into and out are what is
// beneath the TLS of the two sides, or nil.
func carryOver(to io.Writer, from io.Reader, into, out *batch.Conn) error {
	held := make([]byte, buffer)
	for {
		n, err := from.Read(held)
		for err == nil && out != nil && len(held)-n >= batch.Record && out.More() {
			var more int
			more, err = from.Read(held[n:])
			n += more
		}
		if n > 0 {
			if _, err := to.Write(held[:n]); err != nil {
				return err
			}
			if into != nil {
				if err := into.Flush(); err != nil {
					return err
				}
			}
		}
		if err != nil {
			return err
		}
	}
}
