package sessions

import (
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Attempt is what a session knows of a wish that its launcher carries out by jobs, one at a time. The zero Attempt is
// of a wish that was never asked for.
type Attempt struct {
	wanted   string        // what was asked for last, in the wish's own words, such as a size
	done     bool          // the launcher has done that, as far as it could
	job      uint64        // which does it now; 0 for none
	patience time.Duration // until a failed attempt is made again
	after    time.Time     // the earliest time of that
}

// Next reports whether to ask for what is wanted, and how long to wait before that. While a job runs there is nothing
// to ask: its result comes as an event. What was done is not asked for again until something else is wanted.
func (a Attempt) Next(wanted string, now time.Time) (ask bool, wait time.Duration) {
	switch {
	case a.job != 0, a.wanted == wanted && a.done:
		return false, 0
	case a.wanted == wanted && now.Before(a.after):
		return false, a.after.Sub(now)
	}
	return true, 0
}

// Attempt returns what is known of a wish.
func (s *Session) Attempt(wish string) Attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempts[wish]
}

// Attempted notes what the launcher answered when it was asked for what is wanted: the job, or an error. patience is
// how long what fails is not asked for again.
func (s *Session) Attempted(wish, wanted string, job uint64, err error, now time.Time, patience time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attempts == nil {
		s.attempts = map[string]Attempt{}
	}
	a := Attempt{wanted: wanted, job: job, patience: patience}
	if err != nil {
		a = Attempt{wanted: wanted, patience: patience, after: now.Add(patience)}
	}
	s.attempts[wish] = a
}

// SeeJobs takes the results of a launcher's jobs of a kind, and returns those that are new. A virt-handler that was
// restarted sees results that no attempt of its own waits for, too. An attempt whose job the launcher no longer lists
// has failed.
func (s *Session) SeeJobs(jobs []control.Job, kind control.JobKind, now time.Time) (ended []control.Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	listed := map[uint64]control.Job{}
	for _, j := range jobs {
		if j.Kind != kind {
			continue
		}
		listed[j.ID] = j
		if j.Finished() && j.ID > s.seenJob {
			ended = append(ended, j)
		}
	}
	for _, j := range ended {
		s.seenJob = max(s.seenJob, j.ID)
	}
	for wish, a := range s.attempts {
		j, there := listed[a.job]
		switch {
		case a.job == 0, there && !j.Finished():
			continue
		case there && j.State == control.JobDone:
			a.job, a.done = 0, true
		default:
			a = Attempt{wanted: a.wanted, patience: a.patience, after: now.Add(a.patience)}
		}
		s.attempts[wish] = a
	}
	return ended
}
