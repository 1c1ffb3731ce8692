package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/kubeqemu/kubeqemu/internal/tty"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

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
	restore, err := tty.Raw(int(os.Stdin.Fd()))
	terminal := err == nil
	if terminal {
		defer restore()
		fmt.Fprint(os.Stderr, "Attached to the serial console; leave with Ctrl+].\r\n")
	}
	done := make(chan struct{}, 2)
	go func() { io.Copy(os.Stdout, conn); done <- struct{}{} }()
	go func() {
		escaped := tty.CopyInput(conn, os.Stdin)
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
