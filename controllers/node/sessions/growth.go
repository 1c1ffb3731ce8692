package sessions

import (
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// GrowPatience is how long the next attempt to make a disk larger waits after a
// failed one.
const GrowPatience = 5 * time.Minute

// Growth is what a session knows of the growth of a disk on a claim. The launcher
// lists the jobs, so that a virt-handler that was restarted finds the job that the
// last virt-handler began.
type Growth struct {
	size  int64     // the size that the disk has reached, in bytes
	seen  uint64    // the last job whose result was seen
	after time.Time // the earliest time of the next attempt
}

// See takes the result of a job, and says whether the result is new.
func (g *Growth) See(j *control.Job, now time.Time) (news bool) {
	if j == nil || !j.Finished() || j.ID <= g.seen {
		return false
	}
	g.seen = j.ID
	if j.State == control.JobDone {
		g.size = max(g.size, j.Total)
	} else {
		g.Fail(now)
	}
	return true
}

// Next reports whether to begin a job that makes the disk as large as size, in bytes, and how long to wait before
// that. While a job runs, Next begins none; the job's result comes as an event.
func (g *Growth) Next(j *control.Job, size int64, now time.Time) (start bool, wait time.Duration) {
	switch {
	case j != nil && !j.Finished() && j.ID > g.seen, size <= g.size:
		return false, 0
	case now.Before(g.after):
		return false, g.after.Sub(now)
	}
	return true, 0
}

// Fail notes an attempt that failed at the time now.
func (g *Growth) Fail(now time.Time) { g.after = now.Add(GrowPatience) }

// Growth returns what is known of a disk.
func (s *Session) Growth(disk string) Growth {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.growths[disk]
}

// SetGrowth keeps what is known of a disk.
func (s *Session) SetGrowth(disk string, g Growth) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.growths == nil {
		s.growths = map[string]Growth{}
	}
	s.growths[disk] = g
}
