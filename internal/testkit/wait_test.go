package testkit

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a test that takes down its failure.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Errorf(format string, args ...any) { r.failure = fmt.Sprintf(format, args...) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	panic(r)
}

// failure is what a function that waits says to its test.
func failure(t *testing.T, wait func(testing.TB)) string {
	r := &recorder{TB: t}
	func() {
		defer func() {
			if p := recover(); p != nil && p != r {
				panic(p)
			}
		}()
		wait(r)
	}()
	return r.failure
}

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, start := 0, time.Now()
		got := failure(t, func(t testing.TB) {
			Eventually(t, "the third", func() error {
				if asked++; asked < 3 {
					return errors.New("not yet")
				}
				return nil
			})
		})
		if took := time.Since(start); got != "" || asked != 3 || took > 10*time.Millisecond {
			t.Errorf("asked %d times in %s: %q", asked, took, got)
		}
	})
}

func TestEventuallyGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		got := failure(t, func(t testing.TB) {
			Eventually(t, "the end", func() error { asked++; return fmt.Errorf("error %d", asked) })
		})
		if want := fmt.Sprintf("waited %s in vain for the end: error %d", Patience, asked); got != want {
			t.Errorf("%q, not %q", got, want)
		}
		if least := int(Patience / lastPause); asked < least || asked > 2*least {
			t.Errorf("asked %d times", asked)
		}
	})
}

// TestEventuallyAsksOnceMore: of a process that was not run for long, what came meanwhile counts.
func TestEventuallyAsksOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		came := false
		got := failure(t, func(t testing.TB) {
			Eventually(t, "it", func() error {
				if came {
					return nil
				}
				time.Sleep(2 * Patience)
				came = true
				return errors.New("not yet")
			})
		})
		if got != "" {
			t.Errorf("gave up: %q", got)
		}
	})
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		got := failure(t, func(t testing.TB) { Until(t, "the third", func() bool { asked++; return asked == 3 }) })
		if got != "" || asked != 3 {
			t.Errorf("asked %d times: %q", asked, got)
		}
		got = failure(t, func(t testing.TB) { Until(t, "the end", func() bool { return false }) })
		if want := fmt.Sprintf("waited %s in vain for the end: it is not so", Patience); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	})
}

func TestSlower(t *testing.T) {
	var got []time.Duration
	try := func(least time.Duration) string {
		got = nil
		return failure(t, func(t testing.TB) {
			Slower(t, time.Second, func(d time.Duration) error {
				if got = append(got, d); d < least {
					return errors.New("too short")
				}
				return nil
			})
		})
	}
	want := []time.Duration{time.Second, 4 * time.Second, 16 * time.Second}
	if why := try(16 * time.Second); why != "" || !slices.Equal(got, want) {
		t.Errorf("tried with %v: %s", got, why)
	}
	if why, want := try(time.Hour), "with 4m16s: too short"; why != want || len(got) != 5 {
		t.Errorf("tried with %v: %s", got, why)
	}
}

func TestSoon(t *testing.T) {
	for name, c := range map[string]struct {
		takes []time.Duration
		tries int
		fails string
	}{
		"at once":   {[]time.Duration{time.Second}, 1, ""},
		"the third": {[]time.Duration{time.Minute, 2 * time.Second, time.Second}, 3, ""},
		"never": {[]time.Duration{time.Minute, 4, 3, 2, 5}, 5,
			"it took 2ns or more, 5 times, and should take 1ns at most"},
		"at the last": {[]time.Duration{time.Minute, 4, 3, 2, 1}, 5, ""},
	} {
		tries, most := 0, time.Second
		if name == "never" || name == "at the last" {
			most = 1
		}
		got := failure(t, func(t testing.TB) {
			Soon(t, "it", most, func() time.Duration { tries++; return c.takes[tries-1] })
		})
		if got != c.fails || tries != c.tries {
			t.Errorf("%s: %d times: %s", name, tries, got)
		}
	}
}
