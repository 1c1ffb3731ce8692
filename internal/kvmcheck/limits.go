package kvmcheck

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Limits are the child's limits. Load on the node counts only for Wall: a busy node must not
// look like a KVM that does not work.
type Limits struct {
	// CPU is the CPU time that the child may use.
	CPU time.Duration
	// Asleep is how long the child may neither run nor wait for a CPU. Longer means that KVM
	// has lost the child.
	Asleep time.Duration
	// Wall is the time after which the check is given up without a result.
	Wall time.Duration
}

// DefaultLimits leaves room for the child's own start beside both payloads.
func DefaultLimits() Limits {
	return Limits{CPU: payloadLimit + time.Second, Asleep: 10 * time.Second, Wall: 2 * time.Minute}
}

// overrun is the result of a killed child, and the cause of its context's end.
type overrun Result

func (o overrun) Error() string { return o.Reason }

// usage is the CPU usage of a child, as the scheduler counts it.
type usage struct {
	known  bool
	ran    time.Duration // on a CPU, the guest's time included
	waited time.Duration // for a CPU
}

// exceeded returns the result of a child that has not ended after so much time, and true if
// the child is to be killed. It is pure.
func (l Limits) exceeded(u usage, since time.Duration) (Result, bool) {
	switch {
	case u.ran > l.CPU:
		return Result{Broken, fmt.Sprintf("a small test guest did not end within %v of CPU time, and was killed", l.CPU)}, true
	case u.known && since-u.ran-u.waited > l.Asleep:
		return Result{Broken, fmt.Sprintf("a small test guest did not end, slept for %v, and was killed", l.Asleep)}, true
	case since > l.Wall:
		return Result{Unknown, fmt.Sprintf("a small test guest got %v of CPU time within %v", u.ran.Round(time.Millisecond), l.Wall)}, true
	}
	return Result{}, false
}

// watch ends the child's context when the child exceeds a limit.
func (l Limits) watch(ctx context.Context, pid int, end context.CancelCauseFunc) {
	started := time.Now()
	ticker := time.NewTicker(min(l.CPU, l.Asleep, l.Wall, time.Second) / 10)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if result, over := l.exceeded(usageOf(pid), time.Since(started)); over {
				end(overrun(result))
				return
			}
		}
	}
}

// usageOf is the usage of a process's busiest thread, which runs the payload. The kernel's
// schedstat has the nanoseconds on a CPU, and those in its queue. A kernel without schedstat
// leaves known false.
func usageOf(pid int) (most usage) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		u := usage{known: true}
		if _, err := fmt.Sscan(string(text), &u.ran, &u.waited); err == nil && u.ran+u.waited >= most.ran+most.waited {
			most = u
		}
	}
	return most
}
