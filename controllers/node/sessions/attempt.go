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
	refusal  string        // what the launcher said when it began no job
}

// Next reports whether to ask for what is wanted, and how long to wait before that. While a job runs, Next
// asks for nothing: the job's result comes as an event. A wish that the launcher has carried out is not asked for again
// until something else is wanted.
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

// Begun notes that the launcher has begun a job for what is wanted. patience is how long what fails is not asked for
// again.
func (s *Session) Begun(wish, wanted string, job uint64, patience time.Duration) {
	s.setAttempt(wish, Attempt{wanted: wanted, job: job, patience: patience})
}

// Refused notes that the launcher has begun no job for what is wanted, why, and when it may be asked again. It reports
// whether the launcher said something else before.
func (s *Session) Refused(wish, wanted, why string, again time.Time) (news bool) {
	return s.setAttempt(wish, Attempt{wanted: wanted, refusal: why, after: again}).refusal != why
}

// setAttempt returns the attempt before.
func (s *Session) setAttempt(wish string, a Attempt) (before Attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attempts == nil {
		s.attempts = map[string]Attempt{}
	}
	before, s.attempts[wish] = s.attempts[wish], a
	return before
}

// Ended is a job that has ended, and the wish that it was for; empty for a job that no attempt waits for.
type Ended struct {
	Job  control.Job
	Wish string
}

// SeeJobs takes the results of a launcher's jobs of a kind, and returns those that are new. A virt-handler that was
// restarted sees results that no attempt of its own waits for, too. An attempt whose job the launcher no longer lists
// has failed.
func (s *Session) SeeJobs(jobs []control.Job, kind control.JobKind, now time.Time) (ended []Ended) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wishes, listed := map[uint64]string{}, map[uint64]control.Job{}
	for wish, a := range s.attempts {
		wishes[a.job] = wish
	}
	for _, j := range jobs {
		if j.Kind != kind {
			continue
		}
		listed[j.ID] = j
		if j.Finished() && j.ID > s.seenJob {
			ended = append(ended, Ended{j, wishes[j.ID]})
		}
	}
	for _, e := range ended {
		s.seenJob = max(s.seenJob, e.Job.ID)
	}
	for wish, a := range s.attempts {
		j, there := listed[a.job]
		switch {
		case a.job == 0, there && !j.Finished():
			continue
		case there && j.State == control.JobDone:
			a.job, a.done = 0, true
		default:
			a = Attempt{wanted: a.wanted, after: now.Add(a.patience)}
		}
		s.attempts[wish] = a
	}
	return ended
}
