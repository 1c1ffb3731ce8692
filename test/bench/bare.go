package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// bareQEMU is QEMU with the arguments of a Machine and the least that can
// drive it.
type bareQEMU struct {
	cmd    *exec.Cmd
	qmp    net.Conn
	lines  *bufio.Reader
	serial net.Conn
	agent  net.Conn
}

// writeQEMU writes a script that runs the QEMU of the launcher's image with the image's loader
// and libraries: the image is of another Debian than the host.
func writeQEMU(file, root string) error {
	libraries := root + "/usr/lib/x86_64-linux-gnu"
	return os.WriteFile(file, fmt.Appendf(nil, "#!/bin/sh\nQEMU_MODULE_DIR=%[2]s/qemu exec %[1]s/usr/lib64/ld-linux-x86-64.so.2 --inhibit-cache --library-path %[2]s %[1]s/usr/bin/qemu-system-x86_64 -L %[1]s/usr/share/qemu -L %[1]s/usr/share/seabios \"$@\"\n",
		root, libraries), 0o755)
}

// execBare execs QEMU and reads its greeting; the guest is then stopped (-S). The overlay must
// be there. taps are the queues of the machine's only NIC; QEMU alone has them afterwards. The
// caller must be locked to its thread: QEMU ends with that thread.
func execBare(ctx context.Context, program string, m *qemuargs.Machine, taps ...*os.File) (*bareQEMU, error) {
	return execBareWith(ctx, program, nil, m, taps...)
}

// execBareWith is execBare with more arguments at the end.
func execBareWith(ctx context.Context, program string, more []string, m *qemuargs.Machine, taps ...*os.File) (*bareQEMU, error) {
	q := &bareQEMU{}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	ours := map[qemuargs.InheritedKind]*net.Conn{qemuargs.InheritedQMP: &q.qmp, qemuargs.InheritedSerial: &q.serial, qemuargs.InheritedAgent: &q.agent}
	for _, i := range m.Inherits() {
		if i.Kind == qemuargs.InheritedTap && i.Index < len(taps) {
			theirs = append(theirs, taps[i.Index])
			continue
		}
		if ours[i.Kind] == nil {
			return nil, fmt.Errorf("start QEMU: it inherits %s, which is not made here", i)
		}
		conn, file, err := socketPair()
		if err != nil {
			return nil, err
		}
		*ours[i.Kind], theirs = conn, append(theirs, file)
	}
	q.cmd = exec.CommandContext(ctx, program, append(qemuargs.Strings(m.Args()), more...)...)
	q.cmd.ExtraFiles = theirs
	q.cmd.Env = qemuargs.Environment()
	q.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := q.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	q.qmp.SetDeadline(time.Now().Add(patience))
	q.lines = bufio.NewReader(q.qmp)
	if _, err := q.lines.ReadBytes('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("read QEMU's greeting: %w", err), q.end())
	}
	return q, nil
}

// run lets the guest's CPUs run.
func (q *bareQEMU) run() error {
	for _, command := range []string{"qmp_capabilities", "cont"} {
		if err := q.ask(command, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// ask sends a QMP command, and decodes what it returns.
func (q *bareQEMU) ask(command string, arguments map[string]any, returned any) error {
	message := map[string]any{"execute": command}
	if arguments != nil {
		message["arguments"] = arguments
	}
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if _, err := q.qmp.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	answer, err := q.answer()
	if err == nil && returned != nil {
		err = json.Unmarshal(answer, returned)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	return nil
}

// answer skips events, up to the answer of the command under way.
func (q *bareQEMU) answer() (json.RawMessage, error) {
	for {
		line, err := q.lines.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		var m struct {
			Return json.RawMessage `json:"return"`
			Error  json.RawMessage `json:"error"`
		}
		switch err := json.Unmarshal(line, &m); {
		case err != nil:
			return nil, err
		case m.Error != nil:
			return nil, fmt.Errorf("QEMU says %s", m.Error)
		case m.Return != nil:
			return m.Return, nil
		}
	}
}

func (q *bareQEMU) end() error {
	q.qmp.Close()
	q.serial.Close()
	q.agent.Close()
	if err := q.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end QEMU: %w", err)
	}
	q.cmd.Wait() // its error says only that it was killed
	return nil
}

func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("wrap socket: %w", err)
	}
	return conn, theirs, nil
}

// makeOverlay makes a Machine's overlay as virt-launcher does, and says how
// long that took.
func makeOverlay(m *qemuargs.Machine) (time.Duration, error) {
	o := m.Disks[0].Overlay
	begin := time.Now()
	err := diskimage.Create(o.Path, o.VirtualSize)
	return time.Since(begin), err
}

// bareTimes are the times of one start of bare QEMU.
type bareTimes struct{ overlay, greeted, running time.Duration }

// timeBare times the making of the overlay, and then QEMU from exec to its greeting and to
// running.
func timeBare(ctx context.Context, program string, m *qemuargs.Machine) (t bareTimes, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if t.overlay, err = makeOverlay(m); err != nil {
		return t, err
	}
	begin := time.Now()
	q, err := execBare(ctx, program, m)
	if err != nil {
		return t, err
	}
	t.greeted = time.Since(begin)
	if err = q.run(); err == nil {
		t.running = time.Since(begin)
	}
	return t, errors.Join(err, q.end())
}
