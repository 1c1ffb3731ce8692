package launcher

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/life"
)

// firing is a timer that has fired, and when.
type firing struct {
	timer life.Timer
	after time.Duration
}

// TestTimersFireOnceAndInOrder: all timers come through one channel, each once and at its time. A timer that was
// stopped or set anew gives nothing of before, also if it was due already.
func TestTimersFireOnceAndInOrder(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*timers)
		want []firing
	}{
		"started in another order than they are due": {func(t *timers) {
			t.start(life.GraceTimer, 3*time.Second)
			t.start(life.ButtonTimer, time.Second)
			t.start(life.KillTimer, 2*time.Second)
		}, []firing{{life.ButtonTimer, time.Second}, {life.KillTimer, 2 * time.Second}, {life.GraceTimer, 3 * time.Second}}},
		"due at the same time": {func(t *timers) {
			t.start(life.TPMTimer, time.Second)
			t.start(life.GraceTimer, time.Second)
		}, []firing{{life.GraceTimer, time.Second}, {life.TPMTimer, time.Second}}},
		"stopped": {func(t *timers) {
			t.start(life.GraceTimer, time.Second)
			t.start(life.KillTimer, 2*time.Second)
			t.stop(life.GraceTimer)
		}, []firing{{life.KillTimer, 2 * time.Second}}},
		"stopped though it does not run": {func(t *timers) {
			t.start(life.KillTimer, 2*time.Second)
			t.stop(life.GraceTimer)
		}, []firing{{life.KillTimer, 2 * time.Second}}},
		"stopped when it is due and nobody has heard it": {func(t *timers) {
			t.start(life.GraceTimer, time.Second)
			time.Sleep(2 * time.Second)
			t.stop(life.GraceTimer)
		}, nil},
		"set anew": {func(t *timers) {
			t.start(life.GraceTimer, 9*time.Second)
			t.start(life.GraceTimer, time.Second)
		}, []firing{{life.GraceTimer, time.Second}}},
		"set anew when it is due and nobody has heard it": {func(t *timers) {
			t.start(life.GraceTimer, time.Second)
			time.Sleep(2 * time.Second)
			t.start(life.GraceTimer, 5*time.Second)
		}, []firing{{life.GraceTimer, 7 * time.Second}}},
		"stopped when it is due, and another is due too": {func(t *timers) {
			t.start(life.GraceTimer, time.Second)
			t.start(life.KillTimer, 2*time.Second)
			time.Sleep(3 * time.Second)
			t.stop(life.GraceTimer)
		}, []firing{{life.KillTimer, 3 * time.Second}}},
		"closed": {func(t *timers) {
			t.start(life.GraceTimer, time.Second)
			t.start(life.KillTimer, 9*time.Second)
			time.Sleep(2 * time.Second)
			t.close()
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin, timers := time.Now(), newTimers()
				defer timers.close()
				c.do(&timers)
				if got := firings(&timers, begin); !slices.Equal(got, c.want) {
					t.Errorf("fired: %v, want %v", got, c.want)
				}
			})
		})
	}
}

// firings returns what fires until nothing has fired for an hour.
func firings(timers *timers, begin time.Time) (all []firing) {
	for {
		select {
		case <-timers.fired():
			all = append(all, firing{timers.take(), time.Since(begin)})
		case <-time.After(time.Hour):
			return all
		}
	}
}
