package launcher

import (
	"bytes"
	"io"
	"log/slog"
	"math"
	"sync"
	"time"
)

// podLogChunks is how far the pod's log may be behind before output is
// dropped, in chunks of at most 32 KiB (what os/exec copies at once).
const podLogChunks = 64

// podLog writes what somebody else says into the pod's log: no faster than its
// bounds, so that it fills no disk, and never holding up who says it. The
// container runtime may be down, and then nobody reads the log.
type podLog struct {
	what  string // for the note on what was left out
	rate  float64
	burst float64
	log   *slog.Logger

	mu     sync.Mutex
	closed bool
	chunks chan []byte

	done chan struct{}
}

// newPodLog writes to w at most burst bytes at once and rate bytes a second.
func newPodLog(w io.Writer, what string, rate, burst float64, log *slog.Logger) *podLog {
	p := &podLog{what: what, rate: rate, burst: burst, log: log, chunks: make(chan []byte, podLogChunks), done: make(chan struct{})}
	go p.run(w)
	return p
}

// NewLogWriter hands what is written on to w in the background: the pipe to a
// container runtime that is stopped fills up, and a launcher that waited for it
// would serve neither its VM nor virt-handler. What comes faster than w takes it
// is dropped. Close waits for w, for a moment.
func NewLogWriter(w io.Writer) io.WriteCloser {
	// Nothing is left out for its rate, so there is no note to write.
	return newPodLog(w, "", 0, math.MaxFloat64, nil)
}

// Write takes a copy of chunk, or drops it. It never fails.
func (p *podLog) Write(chunk []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		select {
		case p.chunks <- bytes.Clone(chunk):
		default:
		}
	}
	return len(chunk), nil
}

// Close waits until all is written, but not for long. It never fails.
func (p *podLog) Close() error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.chunks)
	}
	p.mu.Unlock()
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	select {
	case <-p.done:
	case <-timeout.C:
	}
	return nil
}

func (p *podLog) run(w io.Writer) {
	defer close(p.done)
	budget, last, dropped := p.burst, time.Now(), 0
	defer func() {
		if dropped > 0 {
			p.log.Warn("left out "+p.what, "bytes", dropped)
		}
	}()
	var warned time.Time
	for chunk := range p.chunks {
		now := time.Now()
		budget = min(p.burst, budget+now.Sub(last).Seconds()*p.rate)
		last = now
		if budget < float64(len(chunk)) {
			dropped += len(chunk)
			continue
		}
		// The same log gets this line: it must not fill it in their stead.
		if dropped > 0 && now.Sub(warned) >= time.Second {
			p.log.Warn("left out "+p.what, "bytes", dropped)
			dropped, warned = 0, now
		}
		budget -= float64(len(chunk))
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}
