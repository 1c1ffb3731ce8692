package imagefile

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// TestAnswerThatFindsNoRoom: an answer to whoever takes nothing is given up.
func TestAnswerThatFindsNoRoom(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	for _, size := range []int{64 << 10, 1} {
		for unix.Send(pair[0], make([]byte, size), unix.MSG_DONTWAIT) == nil {
		}
	}
	given := make(chan error, 1)
	go func() {
		given <- hand(pair[0], func() (File, error) {
			fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			return File(fd), err
		}, 50*time.Millisecond)
	}()
	err = testkit.ReceiveWithin(t, 30*time.Second, given, "the end of the answer")
	if !errors.Is(err, unix.EAGAIN) {
		t.Errorf("an answer that finds no room: %v", err)
	}
}
