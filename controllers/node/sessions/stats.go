package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

const (
	// statsShared is how long an answer is given to later scrapes, too, so that two Prometheus
	// servers wake a guest only once.
	statsShared = time.Second
	// maxStats bounds an answer, in bytes. A disk takes 300 bytes, and a virtual CPU 100.
	maxStats = 128 << 10
)

// statsAnswer decodes an answer that is within its bounds.
type statsAnswer struct{ stats *control.Stats }

func (a *statsAnswer) UnmarshalJSON(text []byte) (err error) {
	a.stats, err = ReadStats(text)
	return err
}

// ReadStats reads a launcher's answer. An answer that exceeds a bound is an error.
func ReadStats(text []byte) (*control.Stats, error) {
	if len(text) > maxStats {
		return nil, fmt.Errorf("%w: statistics of %d bytes", control.ErrProtocol, len(text))
	}
	stats := &control.Stats{}
	if err := json.Unmarshal(text, stats); err != nil {
		return nil, err
	}
	// An empty element takes two bytes on the line, and fifty times as much memory here, where
	// it stays until the next question.
	if n := max(len(stats.VCPUs), len(stats.Disks), len(stats.NICs)); n > maxDevices {
		return nil, fmt.Errorf("%w: statistics of %d devices", control.ErrProtocol, n)
	}
	return stats, nil
}

// statsQuestion is one question to the launcher, which all callers of Stats share.
type statsQuestion struct {
	done  chan struct{} // closed when the rest is set
	stats *control.Stats
	err   error
	at    time.Time
}

var errNoAnswer = errors.New("virt-launcher does not answer")

// Stats asks the launcher for statistics. Callers share a question that is still open, and an
// answer younger than statsShared. A late answer is for the next caller.
func (s *Session) Stats(ctx context.Context) (*control.Stats, error) {
	s.mu.Lock()
	q := s.question
	if q == nil || q.stale() {
		q = &statsQuestion{done: make(chan struct{})}
		s.question = q
		go s.askStats(q)
	}
	s.mu.Unlock()
	select {
	case <-q.done:
		return q.stats, q.err
	case <-ctx.Done():
		return nil, errNoAnswer
	}
}

func (s *Session) askStats(q *statsQuestion) {
	defer close(q.done)
	var answer statsAnswer
	q.err = s.Call(context.Background(), control.CommandStats, nil, &answer)
	q.stats, q.at = answer.stats, time.Now()
}

func (q *statsQuestion) stale() bool {
	select {
	case <-q.done:
		return time.Since(q.at) > statsShared
	default:
		return false
	}
}
