package ipv6

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
)

// scripted is a socket whose reads are given and whose writes are counted.
type scripted struct {
	net.PacketConn
	from  net.Addr
	reads chan any // []byte or error
	once  sync.Once

	mu     sync.Mutex
	writes [][]byte
}

func newScripted(from string) *scripted {
	return &scripted{reads: make(chan any), from: &net.UDPAddr{IP: net.ParseIP(from), Port: dhcpv6.DefaultClientPort}}
}

func (s *scripted) ReadFrom(b []byte) (int, net.Addr, error) {
	switch v := (<-s.reads).(type) {
	case []byte:
		return copy(b, v), s.from, nil
	case error:
		return 0, nil, v
	}
	return 0, nil, net.ErrClosed
}

func (s *scripted) WriteTo(b []byte, _ net.Addr) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes = append(s.writes, bytes.Clone(b))
	return len(b), nil
}

func (s *scripted) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.writes)
}

func (s *scripted) Close() error {
	s.once.Do(func() { close(s.reads) })
	return nil
}

// TestFloodGetsBoundedAnswers: a guest that floods gets a bounded number of answers, and the log a bounded number of
// lines. A guest that asks gets one.
func TestFloodGetsBoundedAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		router, server := newScripted("fe80::2"), newScripted("fe80::2")
		var text bytes.Buffer
		s, err := Serve(Sockets{Router: router, DHCP: server}, lease(), slog.New(slog.NewTextHandler(&text, nil)))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if router.count() != 1 {
			t.Errorf("%d advertisements at the start", router.count())
		}
		solicit := message(dhcpv6.MessageTypeSolicit, dhcpv6.OptClientID(client()), association(1)).ToBytes()
		for _, read := range []any{errors.New("network is down"), []byte{}, []byte("garbage"), make([]byte, maxPacket+1), solicit} {
			server.reads <- read
		}
		router.reads <- []byte{133, 0, 0, 0, 0, 0, 0, 0}
		synctest.Wait()
		if router.count() != 2 || server.count() != 1 {
			t.Errorf("%d advertisements, %d answers", router.count(), server.count())
		}
		time.Sleep(advertised + time.Second)
		if router.count() != 3 {
			t.Errorf("%d advertisements after %s", router.count(), advertised)
		}
		before := server.count()
		flooded := time.Now().Add(10 * time.Second)
		for time.Now().Before(flooded) {
			server.reads <- solicit
			router.reads <- []byte{133, 0, 0, 0, 0, 0, 0, 0}
		}
		if n := server.count() - before; n > answersAtOnce+11*answersPerSecond {
			t.Errorf("%d answers in 10 s", n)
		}
		if n := router.count() - 3; n > answersAtOnce+11*answersPerSecond {
			t.Errorf("%d advertisements in 10 s", n)
		}
		synctest.Wait() // the server has done with the last message
		server.from = &net.UDPAddr{IP: net.ParseIP("fd10:0:2::2"), Port: dhcpv6.DefaultClientPort}
		before = server.count()
		for range 100 {
			server.reads <- solicit
		}
		synctest.Wait()
		if server.count() != before {
			t.Error("answered a client at another address than a link-local one")
		}
		s.Close()
		s.Close() // a second one does nothing
		if n := strings.Count(text.String(), "\n"); n < 1 || n > 20 {
			t.Errorf("%d log lines:\n%s", n, text.String())
		}
	})
}
