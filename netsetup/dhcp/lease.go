// Package dhcp answers the DHCPv4 messages of one guest with one fixed lease
// (RFC 2131, 2132, 3442, 6842). It keeps no state and imports only a packet library.
package dhcp

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// DefaultLeaseSeconds is 999 days, as KubeVirt has it: the address is the guest's
// for as long as its pod lives.
const DefaultLeaseSeconds = 999 * 24 * 60 * 60

// Lease is all that a guest is told. All addresses are IPv4.
type Lease struct {
	// ClientMAC is the only hardware address that is answered.
	ClientMAC string `json:"clientMAC"`
	// ClientIP is the guest's address with prefix length (option 1).
	ClientIP netip.Prefix `json:"clientIP"`
	// ServerIP is the server identifier (option 54).
	ServerIP netip.Addr `json:"serverIP"`
	// Router is the default gateway (option 3), none when unset. It may lie outside
	// ClientIP's network: the guest is then told an on-link route to it.
	Router netip.Addr `json:"router,omitzero"`
	// Routes are further routes (option 121). A client that takes them ignores
	// option 3 (RFC 3442), so the default route over Router is added to them.
	Routes []Route `json:"routes,omitempty"`
	// DNS are name servers (option 6) in order of preference.
	DNS []netip.Addr `json:"dns,omitempty"`
	// SearchDomains is option 119; the first is also the domain name (option 15).
	SearchDomains []string `json:"searchDomains,omitempty"`
	// Hostname is option 12, left out when empty.
	Hostname string `json:"hostname,omitempty"`
	// MTU in bytes (option 26), left out when 0.
	MTU uint16 `json:"mtu,omitempty"`
	// NTP are time servers (option 42).
	NTP []netip.Addr `json:"ntp,omitempty"`
	// TFTPServer and BootFile are options 66 and 67, left out when empty; at most 255 octets.
	TFTPServer string `json:"tftpServer,omitempty"`
	BootFile   string `json:"bootFile,omitempty"`
	// Private are options of the site's own.
	Private []Option `json:"private,omitempty"`
	// Seconds is the lease time (option 51); 0 means DefaultLeaseSeconds.
	Seconds uint32 `json:"seconds,omitempty"`
}

// Route is a classless static route.
type Route struct {
	Destination netip.Prefix `json:"destination"`
	// Gateway is unset for a destination on the link.
	Gateway netip.Addr `json:"gateway,omitzero"`
}

// Option is a DHCP option of the site's own meaning.
type Option struct {
	// Code is 224 to 254 (RFC 3942).
	Code uint8 `json:"code"`
	// Value is 1 to 255 octets.
	Value string `json:"value"`
}

// maxLease is how much of a message a lease may take, in octets: what the reply repeats of the
// client's own options must fit too.
const maxLease = 1200

// Check reports what in the lease could not be told to a guest.
func (l Lease) Check() error {
	if mac, err := net.ParseMAC(l.ClientMAC); err != nil || len(mac) != 6 {
		return fmt.Errorf("lease for MAC %q: want six octets", l.ClientMAC)
	}
	if !l.ClientIP.IsValid() || !l.ClientIP.Addr().Is4() || l.ClientIP.Addr().IsUnspecified() {
		return fmt.Errorf("lease of address %s: want IPv4 with prefix length", l.ClientIP)
	}
	if !l.ServerIP.Is4() {
		return fmt.Errorf("lease from server %s: want IPv4", l.ServerIP)
	}
	if l.Router.IsValid() && !l.Router.Is4() {
		return fmt.Errorf("lease with router %s: want IPv4", l.Router)
	}
	for _, r := range l.Routes {
		if !r.Destination.IsValid() || !r.Destination.Addr().Is4() || (r.Gateway.IsValid() && !r.Gateway.Is4()) {
			return fmt.Errorf("lease with route to %s over %s: want IPv4", r.Destination, r.Gateway)
		}
	}
	for _, a := range append(slices.Clone(l.DNS), l.NTP...) {
		if !a.Is4() {
			return fmt.Errorf("lease with server %s: want IPv4", a)
		}
	}
	for _, d := range l.SearchDomains {
		if !Encodable(d) {
			return fmt.Errorf("lease with search domain %q: want labels of 1 to 63 octets, 253 together", d)
		}
	}
	for name, text := range map[string]string{"hostname": l.Hostname, "TFTP server name": l.TFTPServer, "boot file name": l.BootFile} {
		// Clients take a NUL for the text's end (RFC 2132, 2).
		if len(text) > 255 || strings.Contains(text, "\x00") {
			return fmt.Errorf("lease with %s of %d octets: want at most 255, none of them 0", name, len(text))
		}
	}
	for i, o := range l.Private {
		if o.Code < 224 || o.Code > 254 || slices.ContainsFunc(l.Private[:i], func(p Option) bool { return p.Code == o.Code }) {
			return fmt.Errorf("lease with private option %d: want 224 to 254, each once", o.Code)
		}
		if len(o.Value) < 1 || len(o.Value) > 255 {
			return fmt.Errorf("lease with private option %d of %d octets: want 1 to 255", o.Code, len(o.Value))
		}
	}
	if l.MTU != 0 && l.MTU < 68 {
		return fmt.Errorf("lease with MTU %d: want at least 68", l.MTU) // RFC 2132, 5.1
	}
	if n := l.size(); n > maxLease {
		return fmt.Errorf("lease of %d octets: want at most %d", n, maxLease)
	}
	return nil
}

// size is the length of a message with all of the lease but its search domains, of
// which as many are told as fit.
func (l Lease) size() int {
	l.SearchDomains = nil
	return len(leased(l, &dhcpv4.DHCPv4{}, dhcpv4.MessageTypeOffer).ToBytes())
}
