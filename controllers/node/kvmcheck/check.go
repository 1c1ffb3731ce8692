// Package kvmcheck finds out whether KVM works. That /dev/kvm exists proves
// nothing, nor that a VM can be created: there are hosts, virtual machines
// mostly, where both is so and an ordinary kernel hangs, or crawls. So a
// 64-bit payload is run, in a child process that can be killed.
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
	// Argument is the only one of a program that shall call Main.
	Argument = "kvm-check"
	// loops of the payload: 50 million instructions.
	loops = 10_000_000
	// payloadLimit is how much CPU time the payload may take: KVM that works
	// needs a hundredth of it.
	payloadLimit = 2 * time.Second
	// DefaultTimeout is for the child as a whole, which has to start on a busy node.
	DefaultTimeout = 20 * time.Second
	// killLimit is how long a killed child may take to end. One that is
	// stuck in the kernel does not end at all.
	killLimit = 2 * time.Second
	device    = "/dev/kvm"
)

// Result of the check.
type Result struct {
	Works bool
	// Reason says how fast KVM is, or what is wrong with it; one line.
	Reason string
}

// Main is the child's: it runs the payload, says in one line how that went,
// and returns the exit code.
func Main(stdout io.Writer) int {
	// A first look, so that nobody waits for a KVM that crawls.
	if _, err := timed(loops/500, payloadLimit/50); err != nil {
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

// timed runs the payload and says how much CPU time it took; it is an error to
// take more than the limit.
func timed(loops uint64, limit time.Duration) (string, error) {
	taken, err := runPayload(device, loops)
	if err != nil {
		return "", err
	}
	speed := fmt.Sprintf("%d instructions took %v", loops*instructionsPerLoop, taken.Round(time.Millisecond))
	if taken > limit {
		return "", fmt.Errorf("too slow: %s, more than %v", speed, limit)
	}
	return speed, nil
}

// Checker runs a child process that calls Main.
type Checker struct {
	// Path is the child's executable. Default: this process's own.
	Path string
	// Args are the child's. Default: Argument.
	Args []string
	// Timeout after which the child is killed. Default: DefaultTimeout.
	Timeout time.Duration
}

// Run runs the check. It always returns within the timeout and a moment, even
// if the child can be neither waited for nor killed.
func (c Checker) Run(ctx context.Context) Result {
	if c.Path == "" {
		c.Path = "/proc/self/exe"
	}
	if c.Args == nil {
		c.Args = []string{Argument}
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	done := make(chan Result, 1)
	go func() { done <- c.child(ctx) }()
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
		// Nothing more can be done to a process in the kernel; the goroutine
		// waits for it, and whoever ends this process ends both.
		return Result{Reason: fmt.Sprintf("the payload did not end within %v, and its process cannot be killed", c.Timeout)}
	}
}

func (c Checker) child(ctx context.Context) Result {
	// Pdeathsig is sent when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	said := &line{}
	cmd.Stdout, cmd.Stderr = said, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = killLimit / 2
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return Result{Works: true, Reason: said.text()}
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return Result{Reason: fmt.Sprintf("the payload did not end within %v, and was killed", c.Timeout)}
	case errors.As(err, &exit) && said.text() != "":
		return Result{Reason: said.text()}
	}
	return Result{Reason: fmt.Sprintf("run the check: %v", err)}
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
