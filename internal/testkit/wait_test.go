package testkit

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a test that takes down its failure.
type recorder struct {
	testing.TB
	failure string
}

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
		if want := fmt.Sprintf("waited 2m0s in vain for the end: error %d", asked); got != want {
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
		if want := "waited 2m0s in vain for the end: it is not so"; got != want {
			t.Errorf("%q, not %q", got, want)
		}
	})
}
