// Package ipv6 tells one guest of one fixed IPv6 address and of its router: by router
// advertisements (RFC 4861, 8106), and by DHCPv6 (RFC 8415). It keeps no state about the guest.
package ipv6

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
)

// Lease is all that a guest is told.
type Lease struct {
	// Guest is the guest's address, with the prefix length of the network that is on the link.
	Guest netip.Prefix `json:"guest"`
	// Router is the default gateway, a link-local address, and RouterMAC its hardware address.
	Router    netip.Addr `json:"router"`
	RouterMAC string     `json:"routerMAC"`
	// MTU in bytes, 1280 at least (RFC 8200, 5).
	MTU uint32 `json:"mtu"`
	// DNS are name servers in order of preference, at most MaxServers, without a zone.
	DNS []netip.Addr `json:"dns,omitempty"`
	// SearchDomains are told as far as they fit into one packet.
	SearchDomains []string `json:"searchDomains,omitempty"`
	// Seconds is the lease time; 0 means dhcp.DefaultLeaseSeconds.
	Seconds uint32 `json:"seconds,omitempty"`
}

// MaxServers is how many name servers a lease has at most. Systems ask three.
const MaxServers = 8

// Check reports what in the lease could not be told to a guest.
func (l Lease) Check() error {
	if a := l.Guest.Addr(); !l.Guest.IsValid() || !Tellable(a) {
		return fmt.Errorf("lease of address %s: want IPv6 with prefix length", l.Guest)
	}
	if !l.Router.Is6() || !l.Router.IsLinkLocalUnicast() || l.Router.Zone() != "" {
		return fmt.Errorf("lease with router %s: want a link-local IPv6 address", l.Router)
	}
	if mac, err := net.ParseMAC(l.RouterMAC); err != nil || len(mac) != 6 {
		return fmt.Errorf("lease with the router's MAC %q: want six octets", l.RouterMAC)
	}
	if l.MTU < minMTU || l.MTU > 1<<16-1 {
		return fmt.Errorf("lease with MTU %d: want %d to 65535", l.MTU, minMTU)
	}
	if len(l.DNS) > MaxServers {
		return fmt.Errorf("lease with %d name servers: want at most %d", len(l.DNS), MaxServers)
	}
	if i := slices.IndexFunc(l.DNS, func(a netip.Addr) bool { return !Tellable(a) }); i >= 0 {
		return fmt.Errorf("lease with name server %s: want a global IPv6 address", l.DNS[i])
	}
	for _, d := range l.SearchDomains {
		if !dhcp.Encodable(d) {
			return fmt.Errorf("lease with search domain %q: want labels of 1 to 63 octets, 253 together", d)
		}
	}
	return nil
}

// Tellable is true for an address that a guest can reach over its router.
func Tellable(a netip.Addr) bool {
	return a.Is6() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast()
}

// minMTU is what each link carries, and maxPayload what then is left of a packet for a UDP or
// ICMPv6 message without fragments.
const (
	minMTU     = 1280
	maxPayload = minMTU - 40 - 8
)

// fitting returns the longest beginning of the search domains with which a message is not too
// long. Domain names are as in the wire format, without their last dot.
func fitting(domains []string, size func(domains []string) int) []string {
	var out []string
	for _, d := range domains {
		out = append(out, strings.TrimSuffix(d, "."))
	}
	for len(out) > 0 && size(out) > maxPayload {
		out = out[:len(out)-1]
	}
	return out
}
