package process

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// versionTimeout bounds the question for QEMU's version. A loaded node may take seconds
// to read QEMU from disk.
const versionTimeout = 60 * time.Second

// QEMU is a started QEMU and the launcher's ends of its sockets.
type QEMU struct {
	*Process
	QMP    *net.UnixConn
	Serial *net.UnixConn // nil without a serial port
	Agent  *net.UnixConn // nil without a port for the guest agent
}

// StartQEMU must be called on a thread that lives as long as QEMU (see Start). files holds by
// name what the machine inherits, except QEMU's ends of its sockets, which StartQEMU makes.
// The files stay open. With incoming, QEMU waits for a guest of another QEMU.
func StartQEMU(program string, m *qemuargs.Machine, incoming bool, files map[string]*os.File,
	stderr io.Writer) (_ *QEMU, err error) {
	q := &QEMU{} // no result: a return of nil must leave it for closeOurs
	theirs, err := q.sockets(m)
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	defer func() {
		if err != nil {
			q.closeOurs()
		}
	}()
	if err != nil {
		return nil, err
	}
	var inherited []*os.File
	for _, i := range m.Inherits() {
		file := cmp.Or(theirs[i.String()], files[i.String()])
		if file == nil {
			return nil, fmt.Errorf("start QEMU: nobody has brought %s", i)
		}
		inherited = append(inherited, file)
	}
	args := qemuargs.Strings(m.Args())
	if incoming {
		args = append(args, "-incoming", "defer") // not the Machine's: source and target have the same
	}
	if q.Process, err = Start(program, args, inherited, stderr); err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	return q, nil
}

// sockets makes the socket pairs, and returns QEMU's ends by name.
func (q *QEMU) sockets(m *qemuargs.Machine) (map[string]*os.File, error) {
	ours := map[qemuargs.InheritedKind]**net.UnixConn{qemuargs.InheritedQMP: &q.QMP,
		qemuargs.InheritedSerial: &q.Serial, qemuargs.InheritedAgent: &q.Agent}
	theirs := map[string]*os.File{}
	for _, i := range m.Inherits() {
		if ours[i.Kind] == nil {
			continue
		}
		conn, file, err := SocketPair(i.String())
		if err != nil {
			return theirs, err
		}
		*ours[i.Kind], theirs[i.String()] = conn, file
	}
	return theirs, nil
}

// Pair returns the two ends of a new unix stream socket.
func Pair(name string) (one, other *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make %s socket pair: %w", name, err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

// Duplicate returns a second descriptor of a file of Pair.
func Duplicate(file *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", file.Name(), err)
	}
	return os.NewFile(uintptr(fd), file.Name()), nil
}

// SocketPair returns a connection, and the file at its other end, for another process.
func SocketPair(name string) (ours *net.UnixConn, theirs *os.File, err error) {
	file, theirs, err := Pair(name)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("wrap %s socket: %w", name, err)
	}
	return conn.(*net.UnixConn), theirs, nil
}

// End kills QEMU, waits until it is gone, but not for long, and closes the launcher's ends of its sockets.
func (q *QEMU) End() {
	q.Process.End()
	q.closeOurs()
}

func (q *QEMU) closeOurs() {
	for _, ours := range []*net.UnixConn{q.QMP, q.Serial, q.Agent} {
		if ours != nil {
			ours.Close()
		}
	}
}

// QEMUVersion returns QEMU's version, such as 7.2.22: the content of file, or else what QEMU says,
// which takes as much CPU time as a third of a start.
func QEMUVersion(ctx context.Context, program, file string) (string, error) {
	if written, err := os.ReadFile(file); err == nil {
		if version, whole := strings.CutSuffix(string(written), "\n"); whole && isVersion(version) {
			return version, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	out, err := Run(ctx, program, "-version")
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", program, err)
	}
	_, version, _ := strings.Cut(out, "version ")
	if end := strings.IndexFunc(version, func(r rune) bool { return !strings.ContainsRune(digits+".", r) }); end >= 0 {
		version = version[:end]
	}
	if !isVersion(version) {
		return "", fmt.Errorf("ask %s for its version: no version in %q", program, out)
	}
	return version, nil
}

const digits = "0123456789"

// isVersion reports whether a text is two or three numbers with dots between them.
func isVersion(text string) bool {
	numbers := strings.Split(text, ".")
	for _, n := range numbers {
		if n == "" || strings.Trim(n, digits) != "" {
			return false
		}
	}
	return len(numbers) == 2 || len(numbers) == 3
}
