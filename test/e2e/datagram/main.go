// Command datagram speaks UDP for the end-to-end tests, in pods and in guests:
// busybox does not.
//
//	datagram echo PORT...           sends back what comes to the ports
//	datagram ask ADDRESS PORT SIZE  sends SIZE bytes and waits for the same
//
// Nothing that ask sends is fragmented, so that its size is bounded by the MTU.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "datagram:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) > 1 && args[0] == "echo":
		failed := make(chan error)
		for _, port := range args[1:] {
			go func() { failed <- echo(port) }()
		}
		return <-failed
	case len(args) == 4 && args[0] == "ask":
		size, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return ask(net.JoinHostPort(args[1], args[2]), size)
	}
	return errors.New("usage: datagram echo PORT... | ask ADDRESS PORT SIZE")
}

func echo(port string) error {
	conn, err := net.ListenPacket("udp4", ":"+port)
	if err != nil {
		return err
	}
	for buffer := make([]byte, 1<<16); ; {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		if _, err := conn.WriteTo(buffer[:n], from); err != nil {
			fmt.Fprintln(os.Stderr, "datagram:", err)
		}
	}
}

func ask(address string, size int) error {
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		return errors.Join(raw.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO)
		}), err)
	}}
	conn, err := dialer.Dial("udp4", address)
	if err != nil {
		return err
	}
	question, answer := bytes.Repeat([]byte("?"), size), make([]byte, 1<<16)
	if _, err := conn.Write(question); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return err
	}
	n, err := conn.Read(answer)
	if err == nil && !bytes.Equal(answer[:n], question) {
		err = fmt.Errorf("%d bytes came back, sent %d", n, size)
	}
	return err
}
