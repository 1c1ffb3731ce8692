package dhcp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

// ErrMalformed is returned for a message that no client sends.
var ErrMalformed = errors.New("malformed DHCP request")

// Size of a DHCP message every client takes (RFC 2131, 2), in IP datagram octets,
// and the IP and UDP headers in it.
const (
	minDatagram = 576
	headers     = 28
)

// Reply makes the answer to a request: an OFFER to a DISCOVER, an ACK to a REQUEST
// for the lease's address, a NAK to a REQUEST for any other, an ACK without lease
// to an INFORM. It returns nil and no error for what is to be left unanswered:
// another hardware address, another server's OFFER accepted, RELEASE, DECLINE.
// It returns ErrMalformed, or an error about the lease (Lease.Check).
func Reply(lease Lease, request *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	if err := lease.Check(); err != nil {
		return nil, err
	}
	if err := checkRequest(request); err != nil {
		return nil, err
	}
	mac, _ := net.ParseMAC(lease.ClientMAC)
	if request.ClientHWAddr.String() != mac.String() {
		return nil, nil
	}
	reply, err := reply(lease, request)
	if reply != nil && len(reply.ToBytes())+headers > maxPacket {
		return nil, fmt.Errorf("%w: the reply would be of %d octets", ErrMalformed, len(reply.ToBytes()))
	}
	return reply, err
}

func reply(lease Lease, request *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	if server, ok := addressOf(request.ServerIdentifier()); ok && server != lease.ServerIP {
		return nil, nil
	}
	switch request.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		return leased(lease, request, dhcpv4.MessageTypeOffer), nil
	case dhcpv4.MessageTypeRequest:
		if wanted(request) != lease.ClientIP.Addr() {
			return answer(lease, request, dhcpv4.MessageTypeNak), nil
		}
		return leased(lease, request, dhcpv4.MessageTypeAck), nil
	case dhcpv4.MessageTypeInform:
		reply := answer(lease, request, dhcpv4.MessageTypeAck)
		reply.ClientIPAddr = request.ClientIPAddr
		configure(lease, request, reply)
		return reply, nil
	case dhcpv4.MessageTypeRelease, dhcpv4.MessageTypeDecline:
		return nil, nil
	}
	return nil, fmt.Errorf("%w: message type %d", ErrMalformed, request.MessageType())
}

func checkRequest(request *dhcpv4.DHCPv4) error {
	if request.OpCode != dhcpv4.OpcodeBootRequest {
		return fmt.Errorf("%w: opcode %d", ErrMalformed, request.OpCode)
	}
	if request.HWType != iana.HWTypeEthernet {
		return fmt.Errorf("%w: hardware type %d", ErrMalformed, request.HWType)
	}
	if gateway, ok := addressOf(request.GatewayIPAddr); ok {
		return fmt.Errorf("%w: relayed by %s", ErrMalformed, gateway)
	}
	return nil
}

// wanted is the address a REQUEST asks for: its own when it renews, else the one
// offered or remembered (INIT-REBOOT); unset when it names none.
func wanted(request *dhcpv4.DHCPv4) netip.Addr {
	if own, ok := addressOf(request.ClientIPAddr); ok {
		return own
	}
	addr, _ := addressOf(request.RequestedIPAddress())
	return addr
}

// Destination is where a reply goes. Without an address that it is known to have,
// the client is reached by broadcast; so is a NAK (RFC 2131, 4.1).
func Destination(lease Lease, reply *dhcpv4.DHCPv4) netip.AddrPort {
	to := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	own, ok := addressOf(reply.ClientIPAddr)
	if ok && own == lease.ClientIP.Addr() && !reply.IsBroadcast() {
		to = own
	}
	return netip.AddrPortFrom(to, dhcpv4.ClientPort)
}

func answer(lease Lease, request *dhcpv4.DHCPv4, kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	reply := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootReply, HWType: request.HWType, ClientHWAddr: request.ClientHWAddr,
		TransactionID: request.TransactionID, Flags: request.Flags & 0x8000,
		ClientIPAddr: net.IPv4zero, YourIPAddr: net.IPv4zero, ServerIPAddr: net.IPv4zero, GatewayIPAddr: net.IPv4zero,
		Options: dhcpv4.Options{},
	}
	reply.UpdateOption(dhcpv4.OptMessageType(kind))
	reply.UpdateOption(dhcpv4.OptServerIdentifier(lease.ServerIP.AsSlice()))
	if id := request.GetOneOption(dhcpv4.OptionClientIdentifier); id != nil {
		reply.UpdateOption(dhcpv4.OptClientIdentifier(id)) // RFC 6842
	}
	return reply
}

func leased(lease Lease, request *dhcpv4.DHCPv4, kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	reply := answer(lease, request, kind)
	if kind == dhcpv4.MessageTypeAck {
		reply.ClientIPAddr = request.ClientIPAddr
	}
	reply.YourIPAddr = lease.ClientIP.Addr().AsSlice()
	seconds := lease.Seconds
	if seconds == 0 {
		seconds = DefaultLeaseSeconds
	}
	reply.UpdateOption(dhcpv4.OptIPAddressLeaseTime(time.Duration(seconds) * time.Second))
	configure(lease, request, reply)
	return reply
}

// configure adds everything but the lease itself.
func configure(lease Lease, request, reply *dhcpv4.DHCPv4) {
	reply.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(lease.ClientIP.Bits(), 32)))
	if lease.Router.IsValid() {
		reply.UpdateOption(dhcpv4.OptRouter(lease.Router.AsSlice()))
	}
	if routes := classless(lease); len(routes) > 0 {
		reply.UpdateOption(dhcpv4.OptClasslessStaticRoute(routes...))
	}
	if len(lease.DNS) > 0 {
		reply.UpdateOption(dhcpv4.OptDNS(ips(lease.DNS)...))
	}
	if len(lease.NTP) > 0 {
		reply.UpdateOption(dhcpv4.OptNTPServers(ips(lease.NTP)...))
	}
	if lease.TFTPServer != "" {
		reply.UpdateOption(dhcpv4.OptTFTPServerName(lease.TFTPServer))
	}
	if lease.BootFile != "" {
		reply.UpdateOption(dhcpv4.OptBootFileName(lease.BootFile))
	}
	for _, o := range lease.Private {
		reply.UpdateOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(o.Code), []byte(o.Value)))
	}
	if lease.Hostname != "" {
		reply.UpdateOption(dhcpv4.OptHostName(lease.Hostname))
	}
	if lease.MTU != 0 {
		reply.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{byte(lease.MTU >> 8), byte(lease.MTU)}))
	}
	search(lease.SearchDomains, request, reply)
}

func ips(addrs []netip.Addr) (out []net.IP) {
	for _, a := range addrs {
		out = append(out, a.AsSlice())
	}
	return out
}

// classless returns option 121's routes: none when option 3 says it all.
func classless(lease Lease) []*dhcpv4.Route {
	routes := lease.Routes
	outside := lease.Router.IsValid() && !lease.ClientIP.Contains(lease.Router)
	if len(routes) == 0 && !outside {
		return nil
	}
	var out []*dhcpv4.Route
	add := func(destination netip.Prefix, gateway netip.Addr) {
		if !gateway.IsValid() {
			gateway = netip.IPv4Unspecified() // "on the link", RFC 3442
		}
		p := destination.Masked()
		out = append(out, &dhcpv4.Route{
			Dest:   &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)},
			Router: gateway.AsSlice(),
		})
	}
	onLink := slices.ContainsFunc(routes, func(r Route) bool { return !r.Gateway.IsValid() && r.Destination.Contains(lease.Router) })
	if outside && !onLink {
		add(netip.PrefixFrom(lease.Router, 32), netip.Addr{})
	}
	hasDefault := false
	for _, r := range routes {
		if r.Destination.Bits() == 0 {
			hasDefault = true
		}
		add(r.Destination, r.Gateway)
	}
	if lease.Router.IsValid() && !hasDefault {
		add(netip.PrefixFrom(netip.IPv4Unspecified(), 0), lease.Router)
	}
	return out
}

// search adds as many search domains as fit into a datagram the client takes. A
// longer reply would be cut or fragmented, which most clients drop as a whole.
func search(domains []string, request, reply *dhcpv4.DHCPv4) {
	if len(domains) == 0 {
		return
	}
	var relative []string
	for _, d := range domains {
		relative = append(relative, strings.TrimSuffix(d, "."))
	}
	reply.UpdateOption(dhcpv4.OptDomainName(relative[0]))
	limit := uint16(minDatagram)
	if size, err := request.MaxMessageSize(); err == nil && size > limit {
		limit = min(size, maxPacket)
	}
	for n := len(relative); n > 0; n-- {
		reply.UpdateOption(dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: relative[:n]}))
		if len(reply.ToBytes())+headers <= int(limit) {
			return
		}
	}
	reply.DeleteOption(dhcpv4.OptionDNSDomainSearchList)
}

// Encodable tells whether a domain name fits the wire format of RFC 1035.
func Encodable(domain string) bool {
	domain = strings.TrimSuffix(domain, ".")
	if len(domain) > 253 {
		return false
	}
	for label := range strings.SplitSeq(domain, ".") {
		if len(label) < 1 || len(label) > 63 {
			return false
		}
	}
	return true
}

// addressOf is false for no address and for 0.0.0.0, which DHCP uses for none.
func addressOf(ip net.IP) (netip.Addr, bool) {
	addr, ok := netip.AddrFromSlice(ip.To4())
	return addr, ok && !addr.IsUnspecified()
}
