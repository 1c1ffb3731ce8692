package subresources

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// echo is a service of a guest's: it says when its connection has ended.
func echo(t *testing.T, own string) (port string, ended <-chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(own, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	}()
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return port, done
}

// TestClientGoneWithoutAWordIsLetGo: a client that is gone without a word, whether anything is on its way
// to it or not, is let go.
func TestClientGoneWithoutAWordIsLetGo(t *testing.T) {
	for name, sent := range map[string]int{"silent": 0, "amid a flood": 32 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, conn, ended := echoed(t, 200*time.Millisecond)
			go func() { _ = conn.WriteMessage(websocket.BinaryMessage, bytes.Repeat([]byte("x"), sent)) }()
			testkit.Receive(t, ended, "the end of the guest's connection")
			// The place is given back when both directions have ended.
			testkit.Until(t, "the place that was taken", func() bool { return s.server.limits.forwards.Namespaces.Used() == 0 })
		})
	}
}

// TestSilent: a client that is silent and there is not let go.
func TestSilent(t *testing.T) {
	t.Parallel()
	// A client that gets no CPU for so long is gone.
	testkit.Slower(t, 200*time.Millisecond, func(patience time.Duration) error {
		_, conn, ended := echoed(t, patience)
		defer conn.Close()
		pinged, broken := make(chan struct{}, 3*pings), make(chan error, 1)
		pong := conn.PingHandler()
		conn.SetPingHandler(func(data string) error {
			select {
			case pinged <- struct{}{}:
			default: // that many are enough
			}
			return pong(data)
		})
		go func() {
			_, _, err := conn.ReadMessage() // which answers pings
			broken <- err
		}()
		for n := range 3 * pings {
			select {
			case <-pinged:
			case err := <-broken:
				return fmt.Errorf("it was let go after %d pings: %w", n, err)
			case <-ended:
				return fmt.Errorf("the guest was let go after %d pings", n)
			}
		}
		return nil
	})
}

// pings are within the patience with a client that answers none.
const pings = 10

// echoed is a stream to a guest that sends all back.
func echoed(t *testing.T, patience time.Duration) (s *served, conn *websocket.Conn, ended <-chan struct{}) {
	t.Helper()
	s = serve(t)
	s.server.bounds = bounds{ping: patience / pings, patience: patience}
	s.allowed, s.ip = "virtualmachineinstances/portforward", ownAddress(t)
	port, ended := echo(t, s.ip)
	conn, err := s.dial(root + "/namespaces/ns/virtualmachineinstances/vm/portforward/" + port)
	if err != nil {
		t.Fatal(err)
	}
	return s, conn, ended
}
