package peers

import (
	"context"
	"io"
	"net"
	"sync"

	"golang.org/x/time/rate"
)

// buffer is how much a relay holds of each direction, in bytes.
const buffer = 128 << 10

// Pace bounds what all channels of a migration carry in a second, for each direction. QEMU keeps the bound by itself. But QEMU is a tenant's, and the
// link between two nodes is everybody's. A nil Pace is no bound.
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

// Relay carries bytes between two connections until one of them ends, or ctx, and closes both. The bytes from here count for one direction of
// the pace, and the bytes from there for the other.
func Relay(ctx context.Context, here, there net.Conn, pace *Pace) {
	ctx, cancel := context.WithCancel(ctx)
	end := sync.OnceFunc(func() {
		cancel()
		here.Close()
		there.Close()
	})
	defer context.AfterFunc(ctx, end)()
	var both sync.WaitGroup
	carry := func(to, from net.Conn, limiter *rate.Limiter) {
		defer end()
		reader := io.Reader(from)
		if limiter != nil {
			reader = &paced{from, ctx, limiter}
		}
		// Without the wrappers io.CopyBuffer would look for methods that copy without the buffer.
		_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{reader}, make([]byte, buffer))
	}
	if pace == nil {
		pace = &Pace{}
	}
	both.Go(func() { carry(there, here, pace.there) })
	both.Go(func() { carry(here, there, pace.back) })
	both.Wait()
}
