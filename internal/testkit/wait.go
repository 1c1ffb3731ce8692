// Package testkit is what tests of all packages share: how they wait, and how they compare texts with
// committed files. A test waits for what happens, and never for a moment: a busy machine may not run
// it for seconds.
package testkit

import (
	"errors"
	"testing"
	"time"
)

// Patience is how long a test waits for what must happen, before it says that it hangs. Emulated guests that share two
// CPUs with other tests take ten times as long to start: a guest with ten disks takes 10 s alone and more than 3 min
// beside nine others. A boot by UEFI takes 25 s alone, and took more than 10 min on a machine that was slow by itself.
// Patience proves no bound: tests that do measure.
const Patience = 20 * time.Minute

const (
	firstPause = time.Millisecond
	lastPause  = 10 * time.Millisecond
)

// Eventually waits until check returns nil, and fails the test with check's last error when that does not
// happen within Patience. It asks often at first, and then less.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	pause := firstPause
	for start := time.Now(); ; pause = min(pause*5/4, lastPause) {
		asked := time.Now() // before the check: the last one is never cut short by a process that did not run
		err := check()
		if err == nil {
			return
		}
		if asked.Sub(start) > Patience {
			t.Fatalf("waited %s in vain for %s: %v", Patience, what, err)
		}
		time.Sleep(pause)
	}
}

var errNotYet = errors.New("it is not so")

// Until waits until holds returns true, as Eventually does for a check with an error.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	Eventually(t, what, func() error {
		if holds() {
			return nil
		}
		return errNotYet
	})
}

// Slower tries with a time that grows fourfold until the try succeeds. It is for a bound on the wall clock that is
// in what the test looks at, and that no fake clock takes: on a machine too busy for a short time, a longer one
// holds. The test fails with the error of the try whose time is two minutes or more.
func Slower(t testing.TB, first time.Duration, try func(time.Duration) error) {
	t.Helper()
	for d := first; ; d *= 4 {
		err := try(d)
		if err == nil {
			return
		}
		if d >= 2*time.Minute {
			t.Fatalf("with %s: %v", d, err)
		}
		t.Logf("with %s: %v; once more with %s", d, err, 4*d)
	}
}

// Soon fails the test if what it measures takes longer than most five times in a row. A busy machine makes one late,
// and what is slow by itself is late each time.
func Soon(t testing.TB, what string, most time.Duration, measure func() time.Duration) {
	t.Helper()
	const tries = 5
	fastest := measure()
	for range tries - 1 {
		if fastest <= most {
			return
		}
		t.Logf("%s took %s; once more", what, fastest)
		fastest = min(fastest, measure())
	}
	if fastest > most {
		t.Errorf("%s took %s or more, %d times, and should take %s at most", what, fastest, tries, most)
	}
}

// Receive waits for a channel's next value or its end, no longer than Patience.
func Receive[V any](t testing.TB, c <-chan V, what string) V {
	t.Helper()
	return ReceiveWithin(t, Patience, c, what)
}

// ReceiveWithin waits for a channel's next value or its end, no longer than patience.
func ReceiveWithin[V any](t testing.TB, patience time.Duration, c <-chan V, what string) V {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case value := <-c:
		return value
	case <-timer.C:
	}
	select {
	case value := <-c: // it came while this process did not run
		return value
	default:
	}
	t.Fatalf("waited %s in vain for %s", patience, what)
	panic("not reached")
}
