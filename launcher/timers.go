package launcher

import (
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/life"
)

// timers are the timers of a VM's life behind one channel. They need no goroutine: one timer of package time runs until
// the first of them is due. Only the loop uses them.
type timers struct {
	due   [life.Timers]time.Time // zero: the timer does not run
	first *time.Timer
}

func newTimers() timers {
	first := time.NewTimer(time.Hour)
	first.Stop()
	return timers{first: first}
}

// fired returns the channel on which something comes when a timer is due. Then take returns which.
func (t *timers) fired() <-chan time.Time { return t.first.C }

// start makes a timer run, also one that runs or is due already.
func (t *timers) start(timer life.Timer, after time.Duration) {
	t.due[timer] = time.Now().Add(after)
	t.await()
}

// stop makes a timer run no more.
func (t *timers) stop(timer life.Timer) {
	t.due[timer] = time.Time{}
	t.await()
}

// take returns the timer that is due first, which runs no more.
func (t *timers) take() life.Timer {
	timer, _ := t.next()
	t.stop(timer)
	return timer
}

// await makes the channel wait for the timer that is due first. Of what came before, the channel gives nothing any
// more: that is what Stop and Reset of a time.Timer promise.
func (t *timers) await() {
	if timer, runs := t.next(); runs {
		t.first.Reset(time.Until(t.due[timer]))
	} else {
		t.first.Stop()
	}
}

// next returns the timer that is due first, and reports whether any timer runs.
func (t *timers) next() (next life.Timer, runs bool) {
	for timer, due := range t.due {
		if !due.IsZero() && (!runs || due.Before(t.due[next])) {
			next, runs = life.Timer(timer), true
		}
	}
	return next, runs
}

func (t *timers) close() { t.first.Stop() }
