package ipv6

import (
	"encoding/binary"
	"net"
	"time"

	"github.com/insomniacslk/dhcp/rfc1035label"
)

const (
	// routerLifetime is the longest that each client takes (RFC 4861, 6.2.1).
	routerLifetime = 9000 * time.Second
	// advertised is how often the router says without being asked that it is there. A guest
	// that gets no such word for routerLifetime forgets its default route.
	advertised = 10 * time.Minute
)

// Advertisement makes the router's message. The guest gets its address by DHCPv6 (the managed
// flag) and makes none itself (a prefix without the autonomous flag).
func Advertisement(lease Lease) ([]byte, error) {
	if err := lease.Check(); err != nil {
		return nil, err
	}
	domains := fitting(lease.SearchDomains, func(domains []string) int { return len(advertisement(lease, domains)) })
	return advertisement(lease, domains), nil
}

// Types of ICMPv6 messages, and of their options (RFC 4861, 4.6, and RFC 8106, 5).
const (
	routerSolicitation  = 133
	routerAdvertisement = 134

	optionSourceMAC = 1
	optionPrefix    = 3
	optionMTU       = 5
	optionServers   = 25
	optionDomains   = 31
)

// advertisement is the message (RFC 4861, 4.2) without its checksum, which the kernel computes. The library ndp, with which the tests read the
// message, would bring tables of all of Unicode into a launcher that has 8 MiB.
func advertisement(lease Lease, domains []string) []byte {
	const managed, other, onLink, lifetime, forever = 0x80, 0x40, 0x80, uint32(routerLifetime / time.Second), ^uint32(0)
	be := binary.BigEndian
	mac, _ := net.ParseMAC(lease.RouterMAC)
	network := lease.Guest.Masked()
	m := []byte{routerAdvertisement, 0, 0, 0, 64, managed | other}
	m = be.AppendUint16(m, uint16(lifetime))
	m = append(m, make([]byte, 8)...) // times of neighbours: the guest's own
	m = append(m, optionSourceMAC, 1)
	m = append(m, mac...)
	m = be.AppendUint32(append(m, optionMTU, 1, 0, 0), lease.MTU)
	m = append(m, optionPrefix, 4, uint8(network.Bits()), onLink)
	m = be.AppendUint32(be.AppendUint32(m, forever), forever)
	m = append(append(m, 0, 0, 0, 0), network.Addr().AsSlice()...)
	if n := len(lease.DNS); n > 0 {
		m = be.AppendUint32(append(m, optionServers, uint8(1+2*n), 0, 0), lifetime)
		for _, server := range lease.DNS {
			m = append(m, server.AsSlice()...)
		}
	}
	if len(domains) == 0 {
		return m
	}
	names := (&rfc1035label.Labels{Labels: domains}).ToBytes()
	names = append(names, make([]byte, -len(names)&7)...) // an option's length is in units of 8 octets
	m = be.AppendUint32(append(m, optionDomains, uint8(1+len(names)/8), 0, 0), lifetime)
	return append(m, names...)
}

// solicits is true for a guest's question for routers (RFC 4861, 6.1.1). The socket sees no
// packet from beyond the link, so the hop limit is not looked at.
func solicits(packet []byte) bool {
	const header = 8
	if len(packet) < header || packet[0] != routerSolicitation || packet[1] != 0 {
		return false
	}
	for options := packet[header:]; len(options) > 0; {
		if len(options) < 2 || options[1] == 0 || len(options) < 8*int(options[1]) {
			return false
		}
		options = options[8*int(options[1]):]
	}
	return true
}
