// Package timer waits for a time, or until a channel is closed.
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
