package dhcp

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// maxPacket is the largest message read, in octets: one Ethernet frame holds no more. Longer
// messages are dropped.
const maxPacket = 1500

// Server answers one guest on one socket.
type Server struct {
	conn  net.PacketConn
	lease Lease
	log   limitedLog
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once
}

// Serve starts a server that owns conn, a UDP socket on port 67 that reaches only the guest.
// The server ends when the socket is closed, and by no packet and no other error.
func Serve(conn net.PacketConn, lease Lease, log *slog.Logger) *Server {
	s := &Server{
		conn: conn, lease: lease, log: limitedLog{log: log, now: time.Now},
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	go s.run()
	return s
}

// Close closes the socket and waits for the server to end.
func (s *Server) Close() error {
	var err error
	s.once.Do(func() {
		close(s.stop)
		err = s.conn.Close()
	})
	<-s.done
	return err
}

func (s *Server) run() {
	defer close(s.done)
	buffer := make([]byte, maxPacket+1)
	for {
		n, _, err := s.conn.ReadFrom(buffer)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			// E.g. ENETDOWN, or ECONNREFUSED for an earlier reply. A lasting error must not
			// keep a CPU busy.
			s.log.warn("read DHCP request", err)
			select {
			case <-s.stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		case n > maxPacket:
			s.log.warn("read DHCP request", fmt.Errorf("%w: over %d octets", ErrMalformed, maxPacket))
		default:
			if err := s.answer(buffer[:n]); err != nil {
				s.log.warn("answer DHCP request", err)
			}
		}
	}
}

func (s *Server) answer(packet []byte) error {
	request, err := dhcpv4.FromBytes(packet)
	if err != nil {
		return errors.Join(ErrMalformed, err)
	}
	reply, err := Reply(s.lease, request)
	if err != nil || reply == nil {
		return err
	}
	to := Destination(s.lease, reply)
	if _, err := s.conn.WriteTo(reply.ToBytes(), net.UDPAddrFromAddrPort(to)); err != nil {
		return fmt.Errorf("send to %s: %w", to, err)
	}
	s.log.info("answered DHCP request", "request", request.MessageType().String(),
		"reply", reply.MessageType().String(), "address", s.lease.ClientIP.Addr().String())
	return nil
}
