package ipv6

import (
	"fmt"
	"net"
	"time"

	"github.com/mdlayher/ndp"
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
	mac, _ := net.ParseMAC(lease.RouterMAC)
	network := lease.Guest.Masked()
	m := &ndp.RouterAdvertisement{
		CurrentHopLimit: 64, ManagedConfiguration: true, OtherConfiguration: true, RouterLifetime: routerLifetime,
		Options: []ndp.Option{
			&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: mac},
			ndp.NewMTU(lease.MTU),
			&ndp.PrefixInformation{PrefixLength: uint8(network.Bits()), OnLink: true, ValidLifetime: ndp.Infinity, PreferredLifetime: ndp.Infinity, Prefix: network.Addr()},
		},
	}
	if len(lease.DNS) > 0 {
		m.Options = append(m.Options, &ndp.RecursiveDNSServer{Lifetime: routerLifetime, Servers: lease.DNS})
	}
	with := func(domains []string) *ndp.RouterAdvertisement {
		if len(domains) == 0 {
			return m
		}
		more := *m
		more.Options = append(m.Options[:len(m.Options):len(m.Options)], &ndp.DNSSearchList{Lifetime: routerLifetime, DomainNames: domains})
		return &more
	}
	domains := fitting(lease.SearchDomains, func(domains []string) int {
		out, err := ndp.MarshalMessage(with(domains))
		if err != nil { // a name that the library takes for no domain name
			return maxPayload + 1
		}
		return len(out)
	})
	out, err := ndp.MarshalMessage(with(domains))
	if err != nil {
		return nil, fmt.Errorf("make router advertisement: %w", err)
	}
	return out, nil
}

// solicits is true for a guest's question for routers (RFC 4861, 6.1.1). The socket sees no
// packet from beyond the link, so the hop limit is not looked at.
func solicits(packet []byte) bool {
	m, err := ndp.ParseMessage(packet)
	if err != nil {
		return false
	}
	_, ok := m.(*ndp.RouterSolicitation)
	return ok
}
