package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// qemuProcess is a started QEMU and the launcher's ends of its sockets.
type qemuProcess struct {
	cmd    *exec.Cmd
	qmp    *net.UnixConn
	serial *net.UnixConn // nil without a serial port
	agent  *net.UnixConn // nil without a port for the guest agent
	stderr *tail
	exited <-chan life.Exit
}

// startQEMU must be called on a locked thread: the parent-death signal, which
// ends QEMU where the launcher is not PID 1 of a PID namespace, comes when the
// thread that started it ends. The files are those that the machine inherits and
// that are not made here, by name; they stay open.
func startQEMU(program string, m *qemuargs.Machine, files map[string]*os.File, stderr io.Writer) (*qemuProcess, error) {
	q := &qemuProcess{stderr: &tail{limit: 2048}}
	theirs, err := q.sockets(m)
	defer closeAll(theirs)
	if err != nil {
		q.closeOurs()
		return nil, err
	}
	q.cmd = exec.Command(program, qemuargs.Strings(m.Args())...)
	for _, i := range m.Inherits() {
		file := cmp.Or(theirs[i.String()], files[i.String()])
		if file == nil {
			q.closeOurs()
			return nil, fmt.Errorf("start QEMU: nobody has brought %s", i)
		}
		q.cmd.ExtraFiles = append(q.cmd.ExtraFiles, file)
	}
	q.cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin", "HOME=/"}
	q.cmd.Stderr = io.MultiWriter(q.stderr, stderr)
	q.cmd.Stdout = q.cmd.Stderr
	q.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// A child of QEMU's that held stderr open must not keep Wait from returning.
	q.cmd.WaitDelay = 2 * time.Second
	if err := q.cmd.Start(); err != nil {
		q.closeOurs()
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	exited := make(chan life.Exit, 1)
	q.exited = exited
	go func() { exited <- exitOf(q.cmd.Wait()) }()
	return q, nil
}

// sockets makes the socket pairs, and returns QEMU's ends by name.
func (q *qemuProcess) sockets(m *qemuargs.Machine) (map[string]*os.File, error) {
	ours := map[qemuargs.InheritedKind]**net.UnixConn{qemuargs.InheritedQMP: &q.qmp, qemuargs.InheritedSerial: &q.serial, qemuargs.InheritedAgent: &q.agent}
	theirs := map[string]*os.File{}
	for _, i := range m.Inherits() {
		if ours[i.Kind] == nil {
			continue
		}
		conn, file, err := socketPair(i.String())
		if err != nil {
			return theirs, err
		}
		*ours[i.Kind], theirs[i.String()] = conn, file
	}
	return theirs, nil
}

func socketPair(name string) (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make %s socket pair: %w", name, err)
	}
	theirs = os.NewFile(uintptr(fds[1]), name)
	file := os.NewFile(uintptr(fds[0]), name)
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("wrap %s socket: %w", name, err)
	}
	return conn.(*net.UnixConn), theirs, nil
}

func (q *qemuProcess) closeOurs() {
	for _, ours := range []*net.UnixConn{q.qmp, q.serial, q.agent} {
		if ours != nil {
			ours.Close()
		}
	}
}

// PID is QEMU's process ID.
func (q *qemuProcess) PID() int { return q.cmd.Process.Pid }

// Kill sends SIGKILL.
func (q *qemuProcess) Kill() { q.cmd.Process.Kill() }

// end kills QEMU and waits until it is gone, but not for long: one that waits for
// storage dies only when the storage answers.
func (q *qemuProcess) end() {
	q.Kill()
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	select {
	case <-q.exited:
	case <-timeout.C:
	}
}

func exitOf(err error) life.Exit {
	var failed *exec.ExitError
	switch {
	case err == nil:
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

var versionLine = regexp.MustCompile(`version ([0-9]+\.[0-9]+(?:\.[0-9]+)?)`)

// qemuVersion asks QEMU for its version, such as 7.2.22.
func qemuVersion(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "-version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", program, err)
	}
	match := versionLine.FindSubmatch(out)
	if match == nil {
		return "", fmt.Errorf("ask %s for its version: no version in %q", program, out)
	}
	return string(match[1]), nil
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
