// Package cputime measures, in tests, the CPU time that work takes. The wall clock says nothing
// of it while other processes compute.
package cputime

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Of returns the CPU time of the thread that does the work. Work in goroutines that it
// starts is not counted.
func Of(t *testing.T, work func()) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := thread(t)
	work()
	return thread(t) - before
}

func thread(t *testing.T) time.Duration {
	t.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
