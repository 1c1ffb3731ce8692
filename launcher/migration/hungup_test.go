package migration

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestClosedSocketIsHungUp: a socket is hung up once its other end is closed, also if something is left to read.
func TestClosedSocketIsHungUp(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	here, there := os.NewFile(uintptr(fds[0]), "here"), os.NewFile(uintptr(fds[1]), "there")
	defer here.Close()
	if hungUp(here) {
		t.Error("hung up from the start")
	}
	if _, err := there.WriteString("x"); err != nil || hungUp(here) {
		t.Errorf("hung up when something comes (%v)", err)
	}
	there.Close()
	if !hungUp(here) {
		t.Error("not hung up after the end")
	}
}
