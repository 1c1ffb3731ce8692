// Package testkit is what tests of all packages share: how they wait, and how they compare texts with
// committed files. A test waits for what happens, and never for a moment: a busy machine may not run
// it for seconds.
package testkit

import (
	"errors"
	"testing"
	"time"
)

// Patience is how long a test waits for what must happen, before it says that it hangs. It proves no bound.
const Patience = 2 * time.Minute

const (
	firstPause = time.Millisecond
	lastPause  = 50 * time.Millisecond
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

// Until is Eventually for a check that has nothing to say of a failure.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	Eventually(t, what, func() error {
		if holds() {
			return nil
		}
		return errNotYet
	})
}
