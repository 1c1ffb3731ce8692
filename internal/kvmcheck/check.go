// Package kvmcheck finds out whether KVM works. A /dev/kvm, and a VM that can be created,
// prove nothing: on some hosts, mostly virtual machines, both exist, and yet an ordinary
// kernel hangs or crawls. So the check runs a 64-bit payload, in a child process that can be
// killed.
package kvmcheck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// Argument is the first argument of a program that is to call Main.
	Argument = "kvm-check"
	// loops is the number of the payload's loops: 50 million instructions.
	loops = 10_000_000
	// payloadLimit is how much CPU time the payload may take. A KVM that works needs a
	// hundredth of it.
	payloadLimit = 2 * time.Second
	// looks is how often a short payload may be tried; the fastest try counts. The time in
	// which a hypervisor below runs another VM can look like CPU time.
	looks = 3
	// killLimit is how long a killed child may take to end. A child that is stuck in the
	// kernel never ends.
	killLimit = 2 * time.Second
	device    = "/dev/kvm"
)

// Verdict is what is known of KVM.
type Verdict string

const (
	// Unknown is the verdict of a check without a result.
	Unknown Verdict = ""
	// Works and Broken are the verdicts of a check with a result.
	Works  Verdict = "works"
	Broken Verdict = "broken"
)

// Result is the result of the check.
type Result struct {
	Verdict Verdict `json:"verdict"`
	// Reason is one line: how fast KVM is, or what is wrong with it.
	Reason string `json:"reason"`
}

// Main is the child's main function. It runs the payload, writes one line about it, and
// returns the exit code.
func Main(stdout io.Writer) int {
	// The short payload finds a KVM that crawls early.
	_, err := timed(loops/500, payloadLimit/50)
	for more := looks - 1; more > 0 && errors.As(err, new(slowError)); more-- {
		_, err = timed(loops/500, payloadLimit/50)
	}
	if err != nil {
		fmt.Fprintln(stdout, err)
		return 1
	}
	result, err := timed(loops, payloadLimit)
	if err != nil {
		fmt.Fprintln(stdout, err)
		return 1
	}
	fmt.Fprintln(stdout, result)
	return 0
}

// slowError says that the payload took too much CPU time.
type slowError string

func (e slowError) Error() string { return string(e) }

// timed runs the payload, and says how much CPU time the payload took. More than limit is an
// error.
func timed(loops uint64, limit time.Duration) (string, error) {
	taken, err := runPayload(device, loops)
	if err != nil {
		return "", err
	}
	speed := fmt.Sprintf("%d instructions took %v", loops*instructionsPerLoop, taken.Round(time.Millisecond))
	if taken > limit {
		return "", slowError(fmt.Sprintf("too slow: %s, more than %v", speed, limit))
	}
	return speed, nil
}

// Checker runs a child process that calls Main.
type Checker struct {
	// Path is the child's executable. Default: this process's own.
	Path string
	// Args are the child's arguments. Default: Argument.
	Args []string
	// Limits are the child's limits. Default: DefaultLimits.
	Limits Limits
}

// Run runs the check. It returns within about Limits.Wall plus killLimit, even if the child
// can be neither waited for nor killed.
func (c Checker) Run(ctx context.Context) Result {
	if c.Path == "" {
		c.Path = "/proc/self/exe"
	}
	if c.Args == nil {
		c.Args = []string{Argument}
	}
	if c.Limits == (Limits{}) {
		c.Limits = DefaultLimits()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	started := make(chan int, 1)
	done := make(chan Result, 1)
	go func() { done <- c.child(ctx, started) }()
	go func() {
		select {
		case pid := <-started:
			c.Limits.watch(ctx, pid, cancel)
		case <-ctx.Done():
		}
	}()
	select {
	case result := <-done:
		return result
	case <-ctx.Done():
	}
	lost := time.NewTimer(killLimit)
	defer lost.Stop()
	select {
	case result := <-done:
		return result
	case <-lost.C:
		// A process that is stuck in the kernel cannot be ended, and a process that gets no
		// CPU time has not ended yet. The goroutine waits for the child, and both are gone
		// when this process ends. Why the child was killed decides.
		var over overrun
		if errors.As(context.Cause(ctx), &over) {
			return Result{over.Verdict, over.Reason + "; its process has not ended since"}
		}
		return Result{Unknown, "the check was given up, and its process has not ended since"}
	}
}

func (c Checker) child(ctx context.Context, started chan<- int) Result {
	// Pdeathsig is sent when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	said := &line{}
	cmd.Stdout, cmd.Stderr = said, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = killLimit / 2
	err := cmd.Start()
	if err == nil {
		started <- cmd.Process.Pid
		err = cmd.Wait()
	}
	var exit *exec.ExitError
	var over overrun
	switch {
	case err == nil:
		return Result{Works, said.text()}
	case errors.As(context.Cause(ctx), &over):
		return Result(over)
	case errors.As(err, &exit) && exit.Exited() && said.text() != "":
		return Result{Broken, said.text()}
	}
	// These errors say nothing of KVM: no process could be made, or the child was killed.
	return Result{Unknown, fmt.Sprintf("run the check: %v", err)}
}

// line keeps the start of what is written to it.
type line struct{ kept []byte }

func (l *line) Write(p []byte) (int, error) {
	const limit = 512
	l.kept = append(l.kept, p[:min(len(p), limit-len(l.kept))]...)
	return len(p), nil
}

func (l *line) text() string {
	first, _, _ := strings.Cut(string(l.kept), "\n")
	return strings.ToValidUTF8(strings.TrimSpace(first), "")
}
