// Package process starts programs from virt-launcher: QEMU, and what runs before QEMU.
// They have nothing of the launcher's environment, and end with the launcher.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// lastWords is how many bytes are kept of what a program writes.
const lastWords = 2048

// endTimeout bounds the wait for a process that was killed.
const endTimeout = time.Second

// Process is a program that was started.
type Process struct {
	cmd    *exec.Cmd
	said   *tail
	exited <-chan life.Exit
}

// Start must be called on a locked thread that lives as long as the process is to: the
// kernel sends the parent-death signal when the thread that started the process ends.
// The signal ends the process where the launcher is not PID 1 of a PID namespace. The
// process inherits the files from number 3 on. What the process writes goes to log as
// well. The process is in a group of its own: Ctrl+C on the launcher's terminal would end
// QEMU, and is the launcher's to hear.
func Start(program string, args []string, files []*os.File, log io.Writer) (*Process, error) {
	p := &Process{cmd: exec.Command(program, args...), said: &tail{limit: lastWords}}
	p.cmd.ExtraFiles = files
	p.cmd.Env = qemuargs.Environment()
	p.cmd.Stderr = io.MultiWriter(p.said, log)
	p.cmd.Stdout = p.cmd.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	// A child of the process may hold its output open, and must not keep Wait from returning.
	p.cmd.WaitDelay = 2 * time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	exited := make(chan life.Exit, 1)
	p.exited = exited
	go func() {
		awaitEnd(p.PID())
		exited <- exitOf(p.cmd.Wait())
	}()
	return p, nil
}

// Warm has Go find out now what it else finds out when it starts the first process:
// whether the kernel has pidfds, for which Go makes a process of its own. That takes half
// a millisecond.
func Warm() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		self.Release()
	}
}

// awaitEnd returns when a child has ended and waits to be reaped. Without it Wait would
// block a thread in a system call, which keeps Go's monitor thread awake for the first
// 10 ms: the monitor thread runs every 90 µs then, on the CPU on which QEMU starts.
// awaitEnd returns at once where the kernel has no pidfds that can be polled (before
// Linux 5.10).
func awaitEnd(pid int) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	defer file.Close()
	raw, err := file.SyscallConn()
	if err != nil {
		return
	}
	// A pidfd can be read from when its process has ended (pidfd_open(2)).
	_ = raw.Read(func(fd uintptr) bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err != nil || ready > 0
	})
}

// Run runs a program to its end, which comes with the context's at the latest, and
// returns the last of what the program wrote.
func Run(ctx context.Context, program string, args ...string) (string, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := Start(program, args, nil, io.Discard)
	if err != nil {
		return "", err
	}
	select {
	case exit := <-p.exited:
		if exit != (life.Exit{}) {
			return "", fmt.Errorf("it %s: %s", exit, strings.TrimSpace(p.said.String()))
		}
		return p.said.String(), nil
	case <-ctx.Done():
		p.End()
		return "", ctx.Err()
	}
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Said returns the last of what the process wrote, 2 KiB at most.
func (p *Process) Said() string { return p.said.String() }

// LastLine returns the last line that the process wrote.
func (p *Process) LastLine() string {
	text := strings.TrimSpace(p.Said())
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// Exited returns a channel that gets, once, how the process has ended.
func (p *Process) Exited() <-chan life.Exit { return p.exited }

// Kill sends SIGKILL.
func (p *Process) Kill() { p.cmd.Process.Kill() }

// End kills the process and waits until it is gone, but not for long: a process that
// waits for storage dies only when the storage answers.
func (p *Process) End() {
	p.Kill()
	timeout := time.NewTimer(endTimeout)
	defer timeout.Stop()
	select {
	case <-p.exited:
	case <-timeout.C:
	}
}

func exitOf(err error) life.Exit {
	var failed *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // it exited with 0, and a child of the process has its output open
		return life.Exit{}
	case errors.As(err, &failed):
		status := failed.Sys().(syscall.WaitStatus)
		if status.Signaled() {
			return life.Exit{Signal: status.Signal()}
		}
		return life.Exit{Code: status.ExitStatus()}
	}
	return life.Exit{Code: -1}
}

// tail keeps the last bytes written to it.
type tail struct {
	limit int

	mu   sync.Mutex
	data []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if over := len(t.data) - t.limit; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}
