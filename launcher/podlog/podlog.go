// Package podlog writes into a pod's log without waiting for the log's reader.
package podlog

import (
	"bytes"
	"io"
	"log/slog"
	"math"
	"sync"
	"time"
)

// maxChunks is how far the pod's log may be behind before output is
// dropped, in chunks of at most 32 KiB (what os/exec copies at once).
const maxChunks = 64

// drainTimeout bounds how long Close waits for output on its way.
const drainTimeout = time.Second

// Log writes the output of a program or a guest into the pod's log. It writes no
// faster than its bounds, so that the output fills no disk. It never holds up the
// writer: the container runtime may be down, and then nobody reads the log.
type Log struct {
	what  string // names the output in the note on what was left out
	rate  float64
	burst float64
	log   *slog.Logger

	mu     sync.Mutex
	closed bool
	chunks chan []byte

	done chan struct{}
}

// New returns a Log that writes to w at most burst bytes at once and rate bytes a second.
func New(w io.Writer, what string, rate, burst float64, log *slog.Logger) *Log {
	p := &Log{what: what, rate: rate, burst: burst, log: log, chunks: make(chan []byte, maxChunks),
		done: make(chan struct{})}
	go p.run(w)
	return p
}

const (
	// MessageBytesPerSecond and MessageBurst limit how many bytes of a program's messages go to the pod's log. QEMU
	// says little, but a guest can make it warn without end.
	MessageBytesPerSecond = 4 << 10
	MessageBurst          = 128 << 10
)

// Messages returns a Log for the messages of a program.
func Messages(w io.Writer, program string, log *slog.Logger) *Log {
	return New(w, "messages of "+program, MessageBytesPerSecond, MessageBurst, log)
}

// NewWriter returns a writer that writes to w in the background. The pipe to a
// container runtime that is stopped fills up, and a launcher that waited for it
// would serve neither its VM nor virt-handler. The writer drops output that comes
// faster than w takes it. Close waits for w, for a moment.
func NewWriter(w io.Writer) io.WriteCloser {
	// Nothing is left out for its rate, so there is no note to write.
	return New(w, "", 0, math.MaxFloat64, nil)
}

// Write takes a copy of chunk, or drops it. It never fails.
func (p *Log) Write(chunk []byte) (int, error) {
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
func (p *Log) Close() error {
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

func (p *Log) run(w io.Writer) {
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
		// The note goes to the same log, and must not fill the log in the output's stead.
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
