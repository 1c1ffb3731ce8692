package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// bareQEMU is QEMU with the arguments of a Machine and the least that can
// drive it.
type bareQEMU struct {
	pid                int
	qmp, serial, agent net.Conn
	lines              *bufio.Reader
}

// writeQEMU writes a script that runs the QEMU of the launcher's image with the image's loader
// and libraries: the image is of another Debian than the host.
func writeQEMU(file, root string) error {
	return os.WriteFile(file, fmt.Appendf(nil, `#!/bin/sh
QEMU_MODULE_DIR=%[2]s/qemu exec %[1]s/usr/lib64/ld-linux-x86-64.so.2 --inhibit-cache --library-path %[2]s \
	%[1]s/usr/bin/qemu-system-x86_64 -L %[1]s/usr/share/qemu -L %[1]s/usr/share/seabios "$@"
`, root, root+"/usr/lib/x86_64-linux-gnu"), 0o755)
}

// startQEMU starts QEMU, which inherits the files. The run or turn must be locked to its thread. Without an
// environment, QEMU has the bench's.
func startQEMU(r *run, environment, args []string, inherited ...*os.File) (pid int) {
	cmd := exec.CommandContext(r, r.qemu, args...)
	cmd.ExtraFiles, cmd.Env = inherited, environment
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	defer func() {
		for _, f := range inherited {
			f.Close()
		}
	}()
	r.start(cmd)
	return cmd.Process.Pid
}

// execBare execs QEMU and reads its greeting; the guest is then stopped (-S). The overlay must
// be there. taps are the queues of the machine's only NIC; QEMU alone has them afterwards.
func execBare(r *run, m *qemuargs.Machine, taps []*os.File, more ...string) *bareQEMU {
	q := &bareQEMU{}
	var theirs []*os.File
	ours := map[qemuargs.InheritedKind]*net.Conn{
		qemuargs.InheritedQMP: &q.qmp, qemuargs.InheritedSerial: &q.serial, qemuargs.InheritedAgent: &q.agent}
	for _, i := range m.Inherits() {
		if i.Kind == qemuargs.InheritedTap && i.Index < len(taps) {
			theirs = append(theirs, taps[i.Index])
			continue
		}
		if ours[i.Kind] == nil {
			fail("start QEMU: it inherits %s, which is not made here", i)
		}
		conn, file := socketPair(r)
		*ours[i.Kind], theirs = conn, append(theirs, file)
	}
	q.pid = startQEMU(r, qemuargs.Environment(), append(qemuargs.Strings(m.Args()), more...), theirs...)
	q.qmp.SetDeadline(time.Now().Add(patience))
	q.lines = bufio.NewReader(q.qmp)
	_, err := q.lines.ReadBytes('\n')
	check(err, "read QEMU's greeting")
	return q
}

// run lets the guest's CPUs run.
func (q *bareQEMU) run() {
	q.ask("qmp_capabilities", nil, nil)
	q.ask("cont", nil, nil)
}

// ask sends a QMP command, and decodes what it returns.
func (q *bareQEMU) ask(command string, arguments map[string]any, returned any) {
	message := map[string]any{"execute": command}
	if arguments != nil {
		message["arguments"] = arguments
	}
	_, err := q.qmp.Write(append(must(json.Marshal(message)), '\n'))
	check(err, "ask QEMU for "+command)
	answer, err := q.answer()
	if err == nil && returned != nil {
		err = json.Unmarshal(answer, returned)
	}
	check(err, "ask QEMU for "+command)
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

// startPlain starts the plainest QEMU line that boots a Machine's kernel, and returns the guest's serial port: the
// first file that QEMU inherits.
func startPlain(r *run, m *qemuargs.Machine, more ...string) net.Conn {
	serial, theirs := socketPair(r)
	startQEMU(r, nil, append([]string{"-nodefaults", "-display", "none", "-machine", m.Type,
		"-accel", string(m.Accelerator), "-cpu", m.CPU.Model, "-m", strconv.FormatInt(m.MemoryBytes>>20, 10),
		"-chardev", "socket,id=serial,fd=3", "-device", "isa-serial,chardev=serial",
		"-kernel", m.Kernel.Path, "-initrd", m.Kernel.Initrd, "-append", m.Kernel.Args}, more...), theirs)
	return serial
}

// socketPair makes a connection whose other end a program inherits.
func socketPair(r *run) (net.Conn, *os.File) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(err, "make socket pair")
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	conn := must(net.FileConn(ours))
	r.after(conn.Close)
	return conn, theirs
}

// makeOverlay makes a Machine's overlay as virt-launcher does.
func makeOverlay(m *qemuargs.Machine) {
	o := m.Disks[0].Overlay
	check(diskimage.Create(o.Path, o.VirtualSize))
}

// withOverlay returns a copy of a Machine whose overlay is another file, and makes that. A size of 0 is the Machine's.
func withOverlay(m *qemuargs.Machine, path string, size int64) *qemuargs.Machine {
	own := *m
	overlay := *m.Disks[0].Overlay
	overlay.Path, overlay.VirtualSize = path, cmp.Or(size, overlay.VirtualSize)
	own.Disks = append(m.Disks[:0:0], m.Disks...)
	own.Disks[0].Overlay = &overlay
	makeOverlay(&own)
	return &own
}
