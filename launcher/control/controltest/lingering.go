// Package controltest holds what tests of both ends of package control send each other.
package controltest

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// Lingering returns one end of a TCP connection. Its close waits until the other end has taken what
// was sent, or the test ends.
func Lingering(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		unix.Connect(fd, &unix.SockaddrInet4{Port: listener.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}),
		unix.SetNonblock(fd, true),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	peer, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() }) // unread bytes: a reset
	// Write until the connection has had no room for 50 ms.
	for room := 1; room > 0; {
		for err == nil {
			_, err = unix.Write(fd, make([]byte, 1<<20))
		}
		if !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		room, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 50)
	}
	return fd
}
