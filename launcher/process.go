package launcher

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

	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// lastWords is how much of what a program says is kept, in bytes.
const lastWords = 2048

// process is a program that the launcher has started: QEMU, or what runs before
// it. It has nothing of the launcher's environment, and ends with the launcher.
type process struct {
	cmd    *exec.Cmd
	said   *tail // the last of what it wrote
	exited <-chan life.Exit
}

// startProcess must be called on a locked thread that lives as long as the process
// is to: the parent-death signal, which ends it where the launcher is not PID 1 of
// a PID namespace, comes when the thread that started it ends. It inherits the
// files from number 3 on; what it writes goes to log as well.
func startProcess(program string, args []string, files []*os.File, log io.Writer) (*process, error) {
	p := &process{cmd: exec.Command(program, args...), said: &tail{limit: lastWords}}
	p.cmd.ExtraFiles = files
	p.cmd.Env = qemuargs.Environment()
	p.cmd.Stderr = io.MultiWriter(p.said, log)
	p.cmd.Stdout = p.cmd.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// A child of its own that held its output open must not keep Wait from returning.
	p.cmd.WaitDelay = 2 * time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	exited := make(chan life.Exit, 1)
	p.exited = exited
	go func() { exited <- exitOf(p.cmd.Wait()) }()
	return p, nil
}

// runProgram runs a program to its end, which comes with the context's at the
// latest, and returns the last of what it wrote.
func runProgram(ctx context.Context, program string, args ...string) (string, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := startProcess(program, args, nil, io.Discard)
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
		p.end()
		return "", ctx.Err()
	}
}

// PID is its process ID.
func (p *process) PID() int { return p.cmd.Process.Pid }

// Kill sends SIGKILL.
func (p *process) Kill() { p.cmd.Process.Kill() }

// end kills the process and waits until it is gone, but not for long: one that
// waits for storage dies only when the storage answers.
func (p *process) end() {
	p.Kill()
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	select {
	case <-p.exited:
	case <-timeout.C:
	}
}

func exitOf(err error) life.Exit {
	var failed *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // it exited with 0, and a child of its own has its output open
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
