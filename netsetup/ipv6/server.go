package ipv6

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"golang.org/x/time/rate"
)

const (
	// maxPacket is the largest message that is answered, in octets. Longer ones are dropped.
	maxPacket = 1500
	// answersPerSecond and answersAtOnce bound what the guest can make the servers do.
	answersPerSecond = 5
	answersAtOnce    = 20
)

// Server tells one guest of its address and its router.
type Server struct {
	router, dhcp  net.PacketConn
	lease         Lease
	advertisement []byte
	log           *slog.Logger
	stop          chan struct{}
	done          sync.WaitGroup
	once          sync.Once
}

// Sockets reach only the guest. Router is for ICMPv6, and its packets come from the lease's
// Router. DHCP is a UDP socket on port 547.
type Sockets struct{ Router, DHCP net.PacketConn }

// Serve starts a server that owns the sockets, with a lease that passes its Check. The server
// ends when it is closed, and by no packet and no other error.
func Serve(sockets Sockets, lease Lease, log *slog.Logger) (*Server, error) {
	advertisement, err := Advertisement(lease)
	if err != nil {
		return nil, err
	}
	s := &Server{router: sockets.Router, dhcp: sockets.DHCP, lease: lease, advertisement: advertisement, log: log, stop: make(chan struct{})}
	asked := make(chan struct{}, 1)
	s.done.Go(func() {
		s.receive(s.router, "router solicitation", func(packet []byte, _ net.Addr) error {
			if solicits(packet) {
				select {
				case asked <- struct{}{}:
				default: // one is to be answered already, and all get the same answer
				}
			}
			return nil
		})
	})
	s.done.Go(func() { s.advertise(asked) })
	s.done.Go(func() { s.receive(s.dhcp, "DHCPv6 message", s.answer) })
	return s, nil
}

// Close closes the sockets and waits for the server to end.
func (s *Server) Close() error {
	var err error
	s.once.Do(func() {
		close(s.stop)
		err = errors.Join(s.router.Close(), s.dhcp.Close())
	})
	s.done.Wait()
	return err
}

// receive handles packets at a bounded rate, until the socket is closed. What comes faster waits in the
// socket's buffer, and is lost there in the end.
func (s *Server) receive(conn net.PacketConn, what string, handle func(packet []byte, from net.Addr) error) {
	limit := rate.NewLimiter(answersPerSecond, answersAtOnce)
	complain := rate.Sometimes{First: 10, Interval: time.Minute}
	buffer := make([]byte, maxPacket+1)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		switch {
		case err != nil: // such as ENETDOWN; a lasting error must not keep a CPU busy
		case n > maxPacket:
			err = fmt.Errorf("%w: over %d octets", ErrMalformed, maxPacket)
		default:
			err = handle(buffer[:n], from)
		}
		if err != nil {
			complain.Do(func() { s.log.Warn("handle "+what, "err", err) })
		}
		if !s.wait(limit.Reserve().Delay()) {
			return
		}
	}
}

// wait returns false when the server is to end.
func (s *Server) wait(d time.Duration) bool {
	select {
	case <-s.stop:
		return false
	case <-time.After(d):
		return true
	}
}

// advertise says that the router is there: at once, when asked, and from time to time. It
// speaks to all on the link, which is the guest alone.
func (s *Server) advertise(asked <-chan struct{}) {
	complain := rate.Sometimes{First: 10, Interval: time.Minute}
	for {
		if _, err := s.router.WriteTo(s.advertisement, &net.IPAddr{IP: net.IPv6linklocalallnodes}); err != nil {
			complain.Do(func() { s.log.Warn("send router advertisement", "err", err) })
		}
		select {
		case <-s.stop:
			return
		case <-asked:
		case <-time.After(advertised):
		}
	}
}

// answer answers a message that came from a link-local address, as each client's does (RFC
// 8415, 5).
func (s *Server) answer(packet []byte, from net.Addr) error {
	udp, ok := from.(*net.UDPAddr)
	if !ok {
		return fmt.Errorf("%w: from %s", ErrMalformed, from)
	}
	if a, ok := netip.AddrFromSlice(udp.IP); !ok || !a.IsLinkLocalUnicast() || udp.Port != dhcpv6.DefaultClientPort {
		return fmt.Errorf("%w: from %s", ErrMalformed, from)
	}
	request, err := dhcpv6.MessageFromBytes(packet)
	if err != nil {
		return errors.Join(ErrMalformed, err)
	}
	reply, err := Reply(s.lease, request)
	if err != nil || reply == nil {
		return err
	}
	if _, err := s.dhcp.WriteTo(reply.ToBytes(), from); err != nil {
		return fmt.Errorf("send to %s: %w", from, err)
	}
	return nil
}
