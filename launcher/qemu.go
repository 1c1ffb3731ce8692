package launcher

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// qemuProcess is a started QEMU and the launcher's ends of its sockets.
type qemuProcess struct {
	*process
	qmp    *net.UnixConn
	serial *net.UnixConn // nil without a serial port
	agent  *net.UnixConn // nil without a port for the guest agent
}

// startQEMU must be called on a thread that lives as long as QEMU (see
// startProcess). The files are those that the machine inherits and that are not
// made here, by name; they stay open.
func startQEMU(program string, m *qemuargs.Machine, files map[string]*os.File, stderr io.Writer) (q *qemuProcess, err error) {
	q = &qemuProcess{}
	theirs, err := q.sockets(m)
	defer closeAll(theirs)
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
	if q.process, err = startProcess(program, qemuargs.Strings(m.Args()), inherited, stderr); err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
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

const versionPattern = `[0-9]+\.[0-9]+(?:\.[0-9]+)?`

var (
	versionLine = regexp.MustCompile(`version (` + versionPattern + `)`)
	versionFile = regexp.MustCompile(`^` + versionPattern + `\n$`)
)

// qemuVersion is QEMU's version, such as 7.2.22: what is written in a file, or else
// what QEMU says.
func qemuVersion(ctx context.Context, program, file string) (string, error) {
	if written, err := os.ReadFile(file); err == nil && versionFile.Match(written) {
		return strings.TrimSpace(string(written)), nil
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	out, err := runProgram(ctx, program, "-version")
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", program, err)
	}
	match := versionLine.FindStringSubmatch(out)
	if match == nil {
		return "", fmt.Errorf("ask %s for its version: no version in %q", program, out)
	}
	return match[1], nil
}
