// Package timer waits for a while, and no longer than there is a reason to.
package timer

import "time"

// Wait waits for d, and returns true; or it returns false as soon as stop is closed.
func Wait(d time.Duration, stop <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-stop:
		return false
	}
}
