package kvmcheck

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Limits of the child. What a busy node takes from it counts for nothing but
// Wall: load is not taken for a KVM that does not work.
type Limits struct {
	// CPU time that the child may use.
	CPU time.Duration
	// Asleep is how long it may neither run nor wait for a CPU: KVM has lost it.
	Asleep time.Duration
	// Wall is when it is given up; nothing is known then.
	Wall time.Duration
}

// DefaultLimits has room for the child's own start beside both payloads.
func DefaultLimits() Limits {
	return Limits{CPU: payloadLimit + time.Second, Asleep: 10 * time.Second, Wall: 2 * time.Minute}
}

// overrun is the cause for which a child is killed.
type overrun Result

func (o overrun) Error() string { return o.Reason }

// usage is the scheduler's word on a child.
type usage struct {
	known  bool
	ran    time.Duration // on a CPU, as the guest too
	waited time.Duration // for one
}

// exceeded says what a child that has not ended after so much time tells of KVM,
// if that is enough to kill it for. It is pure.
func (l Limits) exceeded(u usage, since time.Duration) (Result, bool) {
	switch {
	case u.ran > l.CPU:
		return Result{Broken, fmt.Sprintf("the payload did not end within %v of CPU time, and was killed", l.CPU)}, true
	case u.known && since-u.ran-u.waited > l.Asleep:
		return Result{Broken, fmt.Sprintf("the payload did not end, slept for %v, and was killed", l.Asleep)}, true
	case since > l.Wall:
		return Result{Unknown, fmt.Sprintf("the payload got %v of CPU time within %v", u.ran.Round(time.Millisecond), l.Wall)}, true
	}
	return Result{}, false
}

// watch ends the child, by its context, when it exceeds a limit.
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

// usageOf is that of a process's busiest thread, in which the payload runs. The
// kernel's schedstat has nanoseconds on a CPU, and nanoseconds in its queue; not
// known is what a kernel without it leaves open.
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
