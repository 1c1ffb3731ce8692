package ipv6

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/insomniacslk/dhcp/rfc1035label"

	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
)

// ErrMalformed is returned for a message that no client sends.
var ErrMalformed = errors.New("malformed DHCPv6 message")

const (
	// maxStale is how many addresses of another's the server takes back in one answer.
	maxStale = 8
	// maxAssociations is how many sets of addresses a client may ask about in one message.
	maxAssociations = 4
)

// Reply makes the answer to a client's message: an Advertise to a Solicit, or a Reply if the
// client wants it at once (rapid commit); a Reply to each other message. The first identity
// association gets the lease's address. It returns nil and no error for what is to be left
// unanswered: a message for another server, or without what RFC 8415, 16 asks for. It returns
// ErrMalformed, or an error about the lease (Lease.Check).
func Reply(lease Lease, request *dhcpv6.Message) (*dhcpv6.Message, error) {
	if err := lease.Check(); err != nil {
		return nil, err
	}
	mac, _ := net.ParseMAC(lease.RouterMAC)
	server := &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: mac}
	if !addressed(request, server) {
		return nil, nil
	}
	if n := len(request.Options.IANA()) + len(request.Options.IATA()) + len(request.Options.IAPD()); n > maxAssociations {
		return nil, fmt.Errorf("%w: %d identity associations", ErrMalformed, n)
	}
	reply := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply, TransactionID: request.TransactionID}
	if client := request.Options.ClientID(); client != nil {
		reply.AddOption(dhcpv6.OptClientID(client))
	}
	reply.AddOption(dhcpv6.OptServerID(server))
	switch request.MessageType {
	case dhcpv6.MessageTypeSolicit:
		if request.GetOneOption(dhcpv6.OptionRapidCommit) != nil {
			dhcpv6.WithRapidCommit(reply)
		} else {
			reply.MessageType = dhcpv6.MessageTypeAdvertise
		}
		associate(lease, request, reply)
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind:
		associate(lease, request, reply)
	case dhcpv6.MessageTypeConfirm:
		confirm(lease, request, reply)
		return reply, nil
	case dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeDecline:
		reply.AddOption(status(iana.StatusSuccess))
		return reply, nil
	case dhcpv6.MessageTypeInformationRequest:
	default:
		return nil, fmt.Errorf("%w: message type %d", ErrMalformed, request.MessageType)
	}
	configure(lease, reply)
	if n := len(reply.ToBytes()); n > maxPayload {
		return nil, fmt.Errorf("%w: the reply would be of %d octets", ErrMalformed, n)
	}
	return reply, nil
}

// addressed says whether a message has the identifiers that its type asks for (RFC 8415, 16),
// and is for this server.
func addressed(request *dhcpv6.Message, own dhcpv6.DUID) bool {
	client, server := request.Options.ClientID(), request.Options.ServerID()
	switch request.MessageType {
	case dhcpv6.MessageTypeSolicit, dhcpv6.MessageTypeConfirm, dhcpv6.MessageTypeRebind:
		return client != nil && server == nil
	case dhcpv6.MessageTypeInformationRequest:
		return server == nil || server.Equal(own)
	}
	return client != nil && server != nil && server.Equal(own)
}

// associate gives the first identity association the lease's address, and takes back what else
// the client believes to have: by a lifetime of 0 (RFC 8415, 18.3.4).
func associate(lease Lease, request, reply *dhcpv6.Message) {
	seconds := lease.Seconds
	if seconds == 0 {
		seconds = dhcp.DefaultLeaseSeconds
	}
	lifetime := time.Duration(seconds) * time.Second
	for i, asked := range request.Options.IANA() {
		answer := &dhcpv6.OptIANA{IaId: asked.IaId}
		if i > 0 {
			answer.Options.Add(status(iana.StatusNoAddrsAvail))
			reply.AddOption(answer)
			continue
		}
		answer.T1, answer.T2 = lifetime/2, lifetime/5*4
		answer.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: lease.Guest.Addr().AsSlice(), PreferredLifetime: lifetime, ValidLifetime: lifetime})
		stale := 0
		for _, a := range asked.Options.Addresses() {
			if !a.IPv6Addr.Equal(lease.Guest.Addr().AsSlice()) && request.MessageType != dhcpv6.MessageTypeSolicit && stale < maxStale {
				answer.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: a.IPv6Addr})
				stale++
			}
		}
		reply.AddOption(answer)
	}
	for _, asked := range request.Options.IATA() {
		answer := &dhcpv6.OptIATA{IaId: asked.IaId}
		answer.Options.Add(status(iana.StatusNoAddrsAvail))
		reply.AddOption(answer)
	}
	for _, asked := range request.Options.IAPD() {
		answer := &dhcpv6.OptIAPD{IaId: asked.IaId}
		answer.Options.Add(status(iana.StatusNoPrefixAvail))
		reply.AddOption(answer)
	}
}

// confirm tells a client that has started anew whether its addresses still are right here.
func confirm(lease Lease, request, reply *dhcpv6.Message) {
	answer := iana.StatusSuccess
	for _, asked := range request.Options.IANA() {
		for _, a := range asked.Options.Addresses() {
			if addr, _ := netip.AddrFromSlice(a.IPv6Addr); addr != lease.Guest.Addr() {
				answer = iana.StatusNotOnLink
			}
		}
	}
	reply.AddOption(status(answer))
}

func status(code iana.StatusCode) *dhcpv6.OptStatusCode {
	return &dhcpv6.OptStatusCode{StatusCode: code}
}

// configure adds what does not belong to an address.
func configure(lease Lease, reply *dhcpv6.Message) {
	if len(lease.DNS) > 0 {
		var servers []net.IP
		for _, a := range lease.DNS {
			servers = append(servers, a.AsSlice())
		}
		reply.AddOption(dhcpv6.OptDNS(servers...))
	}
	without := len(reply.ToBytes())
	domains := fitting(lease.SearchDomains, func(domains []string) int {
		return without + 4 + (&rfc1035label.Labels{Labels: domains}).Length()
	})
	if len(domains) > 0 {
		reply.AddOption(dhcpv6.OptDomainSearchList(&rfc1035label.Labels{Labels: domains}))
	}
}
