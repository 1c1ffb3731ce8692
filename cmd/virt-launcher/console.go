package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// escape is Ctrl+], as in virtctl console.
const escape = 0x1d

// console attaches the terminal to the VM's serial port.
func console(args []string) int {
	flags := flag.NewFlagSet("console", flag.ExitOnError)
	socket := flags.String("console", layout.ConsoleSocket, "`socket` of the running virt-launcher")
	parse(flags, args)

	conn, err := net.Dial("unix", *socket)
	if err != nil {
		fmt.Fprintf(os.Stderr, "virt-launcher: attach to the console: %v\nThe VM has no serial console, or is not running yet.\n", err)
		return 1
	}
	defer conn.Close()
	// Signals are caught before raw mode begins: after that, a signal must not end the process
	// before the terminal is restored.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	restore, err := rawMode(int(os.Stdin.Fd()))
	terminal := err == nil
	if terminal {
		defer restore()
		fmt.Fprint(os.Stderr, "Attached to the serial console; leave with Ctrl+].\r\n")
	}
	done := make(chan struct{}, 2)
	go func() { io.Copy(os.Stdout, conn); done <- struct{}{} }()
	go func() {
		escaped := copyInput(conn, os.Stdin)
		// When piped input ends, the guest's answer may still come.
		if terminal || escaped {
			done <- struct{}{}
		}
	}()
	select {
	case <-done:
	case <-signals:
	}
	return 0
}

// copyInput copies until the input ends, or the escape key comes.
func copyInput(w io.Writer, r io.Reader) (escaped bool) {
	buffer := make([]byte, 1024)
	for {
		n, err := r.Read(buffer)
		i := bytes.IndexByte(buffer[:n], escape)
		if i >= 0 {
			n = i
		}
		if _, werr := w.Write(buffer[:n]); werr != nil || err != nil || i >= 0 {
			return i >= 0
		}
	}
}

// rawMode makes a terminal hand over every key unchanged. An error means that fd is no
// terminal.
func rawMode(fd int) (restore func(), err error) {
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	raw := *old
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, err
	}
	return func() { unix.IoctlSetTermios(fd, unix.TCSETS, old) }, nil
}
