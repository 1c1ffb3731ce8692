package testkit

import (
	"net"
	"os"
	"syscall"
	"testing"
)

// SocketPair returns two connected stream sockets, which are closed when the test ends.
func SocketPair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	one, other := SocketFiles(t)
	return connOf(t, one), connOf(t, other)
}

// SocketFiles returns a pair of sockets as files, which other processes may inherit.
func SocketFiles(t testing.TB) (a, b *os.File) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b = os.NewFile(uintptr(fds[0]), "pair"), os.NewFile(uintptr(fds[1]), "pair")
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// connOf returns a socket as a connection, which is closed when the test ends, and closes the file.
func connOf(t testing.TB, file *os.File) *net.UnixConn {
	t.Helper()
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.UnixConn)
}
