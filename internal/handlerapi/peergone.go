package handlerapi

import (
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/layers"
)

// GoneAfter is how long a stream with data on its way waits to hear from its peer's node.
const GoneAfter = 40 * time.Second

// EndWhenGone closes a stream's connection if nothing is heard of the peer's node for some time
// while data is on its way. TCP's keepalive does nothing then, and TCP itself retries for a
// quarter of an hour. TCP_USER_TIMEOUT would also end a connection whose peer lives but takes
// nothing, and would apply to the keepalive too (tcp(7)). EndWhenGone watches until stop is
// called; stop waits for the end of the watch.
func EndWhenGone(conn net.Conn, after time.Duration) (stop func()) {
	for beneath := range layers.Of(conn) { // to the innermost: TLS would send an alert before it closes
		conn = beneath
	}
	raw, ok := conn.(syscall.Conn)
	if !ok {
		return func() {}
	}
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(after / 4)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			switch gone, err := peerGone(raw, after); {
			case err != nil:
				return // it is closed, or no TCP connection
			case gone:
				conn.Close()
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		watching.Wait()
	})
}

// peerGone says whether a TCP connection retransmits, and has heard nothing for so long.
func peerGone(conn syscall.Conn, after time.Duration) (bool, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false, err
	}
	var info *unix.TCPInfo
	var infoErr error
	if err := raw.Control(func(fd uintptr) {
		info, infoErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); err != nil {
		return false, err
	}
	if infoErr != nil {
		return false, infoErr
	}
	// While a live peer takes nothing, no data is unacknowledged. Data from the peer proves
	// that it lives, as an acknowledgement does.
	heard := time.Duration(min(info.Last_ack_recv, info.Last_data_recv)) * time.Millisecond
	return info.Unacked > 0 && info.Retransmits > 0 && heard >= after, nil
}

// watched is a connection that ends when its peer is gone.
type watched struct {
	net.Conn
	stop func()
}

// NetConn is the connection itself.
func (w *watched) NetConn() net.Conn { return w.Conn }

func (w *watched) Close() error {
	err := w.Conn.Close()
	w.stop()
	return err
}
