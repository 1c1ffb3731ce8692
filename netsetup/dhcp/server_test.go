package dhcp

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// scripted is a socket whose reads are given and whose writes are kept.
type scripted struct {
	net.PacketConn
	reads  chan any // []byte or error
	writes chan sent
	once   sync.Once
}

type sent struct {
	packet []byte
	to     string
}

func (s *scripted) ReadFrom(b []byte) (int, net.Addr, error) {
	switch v := (<-s.reads).(type) {
	case []byte:
		return copy(b, v), &net.UDPAddr{}, nil
	case error:
		return 0, nil, v
	}
	return 0, nil, net.ErrClosed
}

func (s *scripted) WriteTo(b []byte, to net.Addr) (int, error) {
	s.writes <- sent{bytes.Clone(b), to.String()}
	return len(b), nil
}

func (s *scripted) Close() error {
	s.once.Do(func() { close(s.reads) })
	return nil
}

func TestServerSurvives(t *testing.T) {
	conn := &scripted{reads: make(chan any), writes: make(chan sent, 1)}
	var text bytes.Buffer
	server := Serve(conn, masqueradeLease(), slog.New(slog.NewTextHandler(&text, nil)))
	discover := request(dhcpv4.MessageTypeDiscover).ToBytes()
	oversized := append(bytes.Clone(discover), make([]byte, maxPacket)...)
	for range 200 {
		conn.reads <- []byte("garbage")
	}
	for _, read := range []any{errors.New("network is down"), []byte{}, oversized, discover[:239]} {
		conn.reads <- read
	}
	conn.reads <- discover
	got := testkit.Receive(t, conn.writes, "a reply after bad packets")
	m, err := dhcpv4.FromBytes(got.packet)
	if err != nil || m.MessageType() != dhcpv4.MessageTypeOffer || got.to != "255.255.255.255:68" {
		t.Errorf("got %v to %s, error %v", m, got.to, err)
	}
	server.Close()
	server.Close()                                                        // a second one does nothing
	if n := strings.Count(text.String(), "\n"); n < 1 || n > 2*logBurst { // a slow machine takes more than one interval
		t.Errorf("%d log lines, want 1 to %d:\n%s", n, 2*logBurst, text.String())
	}
	if len(conn.writes) != 0 {
		t.Error("replied to a bad packet")
	}
}

func TestLimitedLog(t *testing.T) {
	var text bytes.Buffer
	clock := time.Unix(0, 0)
	l := limitedLog{log: slog.New(slog.NewTextHandler(&text, nil)), now: func() time.Time { return clock }}
	lines := func() int { defer text.Reset(); return strings.Count(text.String(), "\n") }
	for range 100 {
		l.info("x")
	}
	if n := lines(); n != logBurst {
		t.Errorf("%d lines at once", n)
	}
	clock = clock.Add(logInterval - 1)
	l.info("x")
	clock = clock.Add(1)
	l.info("y")
	l.info("z")
	if got := text.String(); !strings.Contains(got, "linesLeftOut=81") || strings.Count(got, "\n") != 1 {
		t.Errorf("after one interval: %q", got)
	}
	lines()
	clock = clock.Add(1000 * logInterval)
	for range 100 {
		l.info("x")
	}
	if n := lines(); n != logBurst {
		t.Errorf("%d lines after a long rest", n)
	}
}
