package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// terminal is a pseudo-terminal with a command on it.
type terminal struct {
	*testing.T
	master, slave *os.File
	screen        *testkit.Transcript
	before        unix.Termios
	cmd           *exec.Cmd
	ended         chan struct{}
}

// onTerminal runs virt-launcher console.
func onTerminal(t *testing.T, socket string) *terminal {
	t.Helper()
	m := &terminal{T: t, screen: testkit.NewTranscript(t, "the terminal"), ended: make(chan struct{})}
	m.open()
	m.before = m.mode()
	m.cmd = exec.Command(binary, "console", "--console", socket)
	m.cmd.Stdin, m.cmd.Stdout, m.cmd.Stderr = m.slave, m.slave, m.slave
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	copied := make(chan struct{})
	go func() { defer close(copied); io.Copy(m.screen, m.master) }()
	go func() { defer close(m.ended); m.cmd.Wait() }()
	t.Cleanup(func() {
		m.cmd.Process.Kill()
		<-m.ended
		m.slave.Close() // now the master reads no more
		<-copied
		m.master.Close()
	})
	m.screen.Expect("Attached to the serial console; leave with Ctrl+].")
	return m
}

func (m *terminal) open() {
	m.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		m.Fatal(err)
	}
	m.master = os.NewFile(uintptr(fd), "ptmx")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		m.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		m.Fatal(err)
	}
}

func (m *terminal) mode() unix.Termios {
	m.Helper()
	mode, err := unix.IoctlGetTermios(int(m.slave.Fd()), unix.TCGETS)
	if err != nil {
		m.Fatal(err)
	}
	return *mode
}

func (m *terminal) press(keys string) {
	m.Helper()
	if _, err := m.master.WriteString(keys); err != nil {
		m.Fatal(err)
	}
}

// expectExit waits for the command's end; the terminal is then as it was.
func (m *terminal) expectExit() {
	m.Helper()
	testkit.Receive(m.T, m.ended, "the console's end")
	if !m.cmd.ProcessState.Success() {
		m.Errorf("the console ended with %s: %q", m.cmd.ProcessState, m.screen)
	}
	if now := m.mode(); now != m.before {
		m.Errorf("the terminal's mode is %+v, was %+v", now, m.before)
	}
}

func TestConsoleOnTerminal(t *testing.T) {
	p := launch(t)
	p.boot()
	m := onTerminal(t, p.path("console.sock"))
	if raw := m.mode(); raw == m.before {
		t.Error("the terminal is not in raw mode")
	}
	m.press("hello")
	m.screen.Expect("hello")
	// Ctrl+C, Ctrl+Z, Ctrl+S and Return are the guest's.
	m.press("\x03\x1a\x13\r.")
	m.screen.Expect("\x03\x1a\x13\r.")
	m.press("last\x1dnever sent")
	m.expectExit()
	p.output.Expect("last")

	m = onTerminal(t, p.path("console.sock"))
	m.press("P")
	m.expectExit() // with the VM
	testkit.Receive(t, p.ended, "virt-launcher's end")
	if strings.Contains(p.output.String(), "never") {
		t.Error("keys after Ctrl+] went to the guest")
	}
}

// TestConsoleEndsBySignal: from the moment that the terminal is in raw mode, a
// signal leaves it as it was.
func TestConsoleEndsBySignal(t *testing.T) {
	// A VM that says nothing.
	socket := filepath.Join(t.TempDir(), "console.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for range 30 {
		m := onTerminal(t, socket)
		if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if m.expectExit(); t.Failed() {
			return
		}
	}
}

// TestConsoleOnPipe: input that ends still has the guest's answer.
func TestConsoleOnPipe(t *testing.T) {
	p := launch(t)
	p.boot()
	cmd := exec.Command(binary, "console", "--console", p.path("console.sock"))
	cmd.Stdin = strings.NewReader("question")
	answer := testkit.NewTranscript(t, "the console")
	cmd.Stdout, cmd.Stderr = answer, answer
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	answer.Expect("question")
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	// The end of the guest's first line may come only now.
	if strings.TrimPrefix(answer.String(), "\r\n") != "question" {
		t.Errorf("beside the answer: %q", answer)
	}
}
