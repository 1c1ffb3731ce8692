package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

const (
	// endPatience is how long a program has to end after QEMU. The program writes nothing then: it has answered each of
	// the guest's requests, or QEMU would not have ended.
	endPatience = 2 * time.Second
	// quitPatience is how long a QEMU that ends may take between the end of its connection to a program and its own.
	quitPatience = 5 * time.Second
	// ExitLost is the exit code of a container whose guest has lost what the container's program serves: the program has
	// ended, and QEMU had not.
	ExitLost = 3
)

// ErrLost: the program has ended while QEMU runs. QEMU connects to no other.
var ErrLost = errors.New("the program has ended before QEMU, and the guest has lost what the program served as long as this QEMU runs")

// Server runs a program that serves one QEMU.
type Server struct {
	Program string
	Args    []string
	// Socket is where the program listens, by its arguments.
	Socket string
	// Output gets what the program writes.
	Output *os.File
}

// Serve runs the program until ctx ends, and then kills it. A program that does not end after QEMU is killed too. Serve
// returns ErrLost if the program has ended, now or in an earlier call, while QEMU runs or ran; the socket's folder
// remembers that the program has had a QEMU.
func (s Server) Serve(ctx context.Context) error {
	mark := filepath.Join(filepath.Dir(s.Socket), "served")
	if _, err := os.Lstat(mark); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(ErrLost, err)
	}
	lifeline, err := listenAnew(layout.Lifeline(s.Socket))
	if err != nil {
		return err
	}
	defer lifeline.Close()
	p, err := s.start()
	if err != nil {
		return err
	}
	defer p.end(0)
	return p.serve(ctx, follow(lifeline, mark, s.Output))
}

// listenAnew listens at a path. What an earlier process has left there is removed.
func listenAnew(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make room for the lifeline: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen at the lifeline: %w", err)
	}
	return l, nil
}

// program is a program that was started.
type program struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed at its end
	exit  error         // valid then
}

// start starts the program. The kernel ends it with this process.
func (s Server) start() (*program, error) {
	p := &program{cmd: exec.Command(s.Program, s.Args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = s.Output, s.Output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	go func() {
		// The kernel kills the program when the thread that started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.exit = p.cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Program, err)
	}
	return p, nil
}

// serve waits for the end of the program, of QEMU and of ctx. QEMU and the program may end in either order.
func (p *program) serve(ctx context.Context, q *peer) error {
	select {
	case <-ctx.Done():
		return nil
	case <-q.gone:
		p.end(endPatience)
		<-ctx.Done() // the container ends with the pod, or the kubelet would start it anew
		return nil
	case <-p.ended:
	}
	if !q.came() {
		return fmt.Errorf("the program has ended before a guest used it: %w", how(p.exit))
	}
	timeout := time.NewTimer(quitPatience)
	defer timeout.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-q.gone:
		<-ctx.Done()
		return nil
	case <-timeout.C:
		return fmt.Errorf("%w: %w", ErrLost, how(p.exit))
	}
}

// how returns how a program has ended: virtiofsd exits with 0 also after an error.
func how(exit error) error {
	if exit == nil {
		return errors.New("exit status 0")
	}
	return exit
}

// end kills the program unless it ends within patience. A program that waits for storage ends only when the storage
// answers, and so does a container.
func (p *program) end(patience time.Duration) {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-p.ended:
	case <-timeout.C:
		p.cmd.Process.Kill()
	}
}

// peer is the QEMU that the program serves.
type peer struct {
	served chan struct{} // closed when QEMU holds the lifeline
	gone   chan struct{} // closed when QEMU has ended
}

// follow follows the first who connects to the lifeline, and makes the file mark then.
func follow(lifeline *net.UnixListener, mark string, output io.Writer) *peer {
	q := &peer{served: make(chan struct{}), gone: make(chan struct{})}
	go func() {
		conn, err := lifeline.Accept()
		if err != nil {
			return // Serve has ended, and closed the lifeline
		}
		defer conn.Close()
		if err := os.WriteFile(mark, nil, 0o600); err != nil {
			fmt.Fprintf(output, "cannot note that a guest uses the program: %v\n", err)
		}
		close(q.served)
		_, _ = conn.Read(make([]byte, 1)) // QEMU writes nothing
		close(q.gone)
	}()
	return q
}

// came reports whether there has been a QEMU.
func (q *peer) came() bool {
	select {
	case <-q.served:
		return true
	default:
		return false
	}
}
