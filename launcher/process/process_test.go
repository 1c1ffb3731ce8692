package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/process/processtest"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// fakes are programs that do what real programs cannot be made to do.
var fakes = processtest.Fakes{
	"program-that-hangs":      processtest.Hang,
	"talkative":               talk,
	"launcher-that-is-killed": beParent,
}

func TestMain(m *testing.M) { os.Exit(fakes.Run(m, 0)) }

// talk writes more than anybody wants to keep, and a last word.
func talk() {
	for range 1 << 10 {
		fmt.Println(strings.Repeat("w", 1023))
	}
	fmt.Print("the end")
}

// beParent starts a program that hangs, says its number, and hangs too.
func beParent() {
	runtime.LockOSThread()
	p, err := Start(os.Args[1], nil, nil, io.Discard)
	if err != nil {
		panic(err)
	}
	fmt.Println(p.PID())
	processtest.Hang()
}

// TestRunProgram: a program's end is waited for, but not longer than the context
// lasts, and of its words the last are kept.
func TestRunProgram(t *testing.T) {
	t.Parallel()
	out, err := Run(t.Context(), fakes.Path(t, "talkative"))
	if err != nil || len(out) != lastWords || !strings.HasSuffix(out, "ww\nthe end") {
		t.Errorf("%d bytes, %.20q…%q, %v", len(out), out, out[max(0, len(out)-20):], err)
	}
	if _, err := Run(t.Context(), "/nonexistent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
	if _, err := Run(t.Context(), "/bin/sh", "-c", "echo out of luck >&2; exit 3"); err == nil || err.Error() != "it exited with code 3: out of luck" {
		t.Errorf("one that fails: %v", err)
	}
	// Nothing of the launcher's environment, and no secret in it, is handed on.
	if out, err := Run(t.Context(), "/usr/bin/env"); err != nil || out != strings.Join(qemuargs.Environment(), "\n")+"\n" {
		t.Errorf("its environment: %q, %v", out, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := Run(ctx, fakes.Path(t, "program-that-hangs"))
		ended <- err
	}()
	if err := testkit.Receive(t, ended, "the end of one that hangs"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one that hangs: %v", err)
	}
}

// TestStartedProgramsDieWithTheLauncher: what a launcher has started goes with it, also where that is
// not PID 1.
func TestStartedProgramsDieWithTheLauncher(t *testing.T) {
	t.Parallel()
	parent := exec.Command(fakes.Path(t, "launcher-that-is-killed"), fakes.Path(t, "program-that-hangs"))
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	pid, convErr := strconv.Atoi(strings.TrimSpace(line))
	parent.Process.Kill()
	parent.Wait()
	if err := errors.Join(err, convErr); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}()
	testkit.Eventually(t, "the end of who was started", func() error {
		// Somebody else's child by now, and a zombie until that one looks.
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, os.ErrNotExist) || err == nil && strings.Contains(string(stat), ") Z ") {
			return nil
		}
		return fmt.Errorf("process %d outlives who started it: %s (%w)", pid, stat, err)
	})
}

// TestOutputHeldOpenByAChildIsNoFailure: who exits with 0 has succeeded, also where a child of its own
// lives on and has its output open.
func TestOutputHeldOpenByAChildIsNoFailure(t *testing.T) {
	t.Parallel()
	if out, err := Run(t.Context(), "/bin/sh", "-c", "echo done; sleep 10 & exit 0"); err != nil || out != "done\n" {
		t.Errorf("it said %q, %v", out, err)
	}
}

// TestSignalToTheGroupDoesNotReachPrograms: a signal to the launcher's group, as Ctrl+C sends one, does not reach a process.
func TestSignalToTheGroupDoesNotReachPrograms(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := Start(fakes.Path(t, "program-that-hangs"), nil, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer p.End()
	if group, err := syscall.Getpgid(p.PID()); err != nil || group != p.PID() {
		t.Errorf("process %d is in the group %d, and this process in %d: %v", p.PID(), group, syscall.Getpgrp(), err)
	}
}
