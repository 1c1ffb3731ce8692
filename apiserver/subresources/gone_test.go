package subresources

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/gorilla/websocket"
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
// to it or not, is let go; one that is silent and there is not.
func TestClientGoneWithoutAWordIsLetGo(t *testing.T) {
	for name, c := range map[string]struct {
		sent  int
		reads bool
		gone  bool
	}{
		"there, and silent":  {0, true, false},
		"gone, and silent":   {0, false, true},
		"gone, amid a flood": {32 << 20, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			s.server.bounds = bounds{ping: 200 * time.Millisecond, patience: 2 * time.Second}
			s.allowed, s.ip = "virtualmachineinstances/portforward", ownAddress(t)
			port, ended := echo(t, s.ip)
			conn, err := s.dial(root + "/namespaces/ns/virtualmachineinstances/vm/portforward/" + port)
			if err != nil {
				t.Fatal(err)
			}
			if c.reads {
				go func() { // which answers pings
					for {
						if _, _, err := conn.ReadMessage(); err != nil {
							return
						}
					}
				}()
			}
			go func() { _ = conn.WriteMessage(websocket.BinaryMessage, bytes.Repeat([]byte("x"), c.sent)) }()
			wait := 6 * time.Second
			if c.gone {
				wait = 30 * time.Second
			}
			select {
			case <-ended:
				if !c.gone {
					t.Error("it was let go")
				}
			case <-time.After(wait):
				if c.gone {
					t.Error("it was not let go")
				}
			}
			if places := s.server.limits.forwards.Namespaces.Used(); c.gone && places != 0 {
				// The place is given back when both directions have ended.
				time.Sleep(time.Second)
				if places = s.server.limits.forwards.Namespaces.Used(); places != 0 {
					t.Errorf("%d places are still taken", places)
				}
			}
		})
	}
}
