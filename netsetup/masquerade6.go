package netsetup

import (
	"net/netip"

	"github.com/kubeqemu/kubeqemu/netsetup/ipv6"
)

// GuestIPv6 is a guest's place in a private IPv6 network.
type GuestIPv6 struct {
	// Guest is the guest's address, with the network's prefix length.
	Guest netip.Prefix `json:"guest"`
	// Router is the bridge's link-local address: a router advertises itself by no other
	// (RFC 4861, 6.1.2).
	Router netip.Addr `json:"router"`
}

// Lease6 is what router advertisements and DHCPv6 tell the guest of the plan, which has IPv6.
func (p *Plan) Lease6() ipv6.Lease {
	return ipv6.Lease{Guest: p.IPv6.Guest, Router: p.IPv6.Router, RouterMAC: p.Bridge.MAC, MTU: uint32(p.Bridge.MTU)}
}

// routerLinkLocal is the bridge's link-local address in every pod: the default route of a guest
// that has moved to another pod stays right.
func routerLinkLocal() netip.Addr { return netip.MustParseAddr("fe80::1") }

// masquerade6 adds the guest's place in the private IPv6 network. pod are the pod's addresses.
func (p *Plan) masquerade6(facts Facts, m Masquerade, pod []netip.Addr) error {
	if err := checkConflict(facts, m.Network6); err != nil {
		return err
	}
	gateway, router := m.Network6.Addr().Next(), routerLinkLocal()
	guest := gateway.Next()
	// IPv6 has nothing like route_localnet: the guest's replies to a connection from ::1 come in by
	// the bridge, and the kernel looks for ::1 on the link that a packet came by (rt6_need_strict in
	// net/ipv6/route.c). So ::1 stays with the pod's own stack.
	nat := masqueradeNAT{
		family: "ip6", pod: pod, link: facts.Link, bridge: p.Bridge.Name,
		gateway: gateway, guest: guest, loopbacks: host(netip.IPv6Loopback()), ports: m.Ports,
	}
	p.Bridge.Addresses = append(p.Bridge.Addresses, netip.PrefixFrom(gateway, m.Network6.Bits()), netip.PrefixFrom(router, 64))
	p.IPv6 = &GuestIPv6{Guest: netip.PrefixFrom(guest, m.Network6.Bits()), Router: router}
	p.Tables = append(p.Tables, nat.table(nat.guestRules6(router, m.Network6)))
	p.Sysctls = append(p.Sysctls, masqueradeSysctls6(facts.Link, p.Bridge.Name)...)
	return nil
}

func masqueradeSysctls6(link, bridge string) []Sysctl {
	of := func(link string) string { return "net/ipv6/conf/" + link + "/" }
	return []Sysctl{
		// A kernel that forwards takes no router advertisements, and forgets the routes by them,
		// unless this is 2. The pod's own address and routes may come by them.
		{Name: of(link) + "accept_ra", From: "1", Value: "2"},
		{Name: of("all") + "forwarding", Value: "1"},
		// Some container runtimes switch IPv6 off for new links.
		{Name: of(bridge) + "disable_ipv6", Value: "0"},
		{Name: of(bridge) + "accept_ra", Value: "0"},
		{Name: of(bridge) + "accept_redirects", Value: "0"},
		// Nobody else is there to have its addresses, and a guest could say so to take them away.
		{Name: of(bridge) + "accept_dad", Value: "0"},
		// The bridge has the planned link-local address only: 1 is IN6_ADDR_GEN_MODE_NONE.
		{Name: of(bridge) + "addr_gen_mode", Value: "1"},
	}
}

// Types of ICMPv6 messages (RFC 4443, 2710, 3810, 4861).
const (
	icmpEchoRequest           = 128
	icmpEchoReply             = 129
	icmpListenerReport        = 131
	icmpListenerDone          = 132
	icmpRouterSolicitation    = 133
	icmpRouterAdvertisement   = 134
	icmpNeighborSolicitation  = 135
	icmpNeighborAdvertisement = 136
	icmpRedirect              = 137
	icmpListenerReport2       = 143
)

// linkLocalRate is how many packets a second the guest may send from link-local addresses. It
// may have any of these: systems make them from the MAC or by chance. For each the kernel
// remembers a neighbour, in one table for all pods of the node.
const linkLocalRate = 20

// guestRules6 let the guest send from its address and from link-local ones, of which it may use
// any but the router's. From these it may find its neighbours and ask for its address, and reach
// no service of the pod's.
func (n masqueradeNAT) guestRules6(router netip.Addr, network netip.Prefix) []Rule {
	linkLocal := netip.MustParsePrefix("fe80::/10")
	from := func(source netip.Prefix, types ...uint8) (rules []Rule) {
		for _, t := range types {
			rules = append(rules, Rule{In: n.bridge, Source: source, ICMP: t, Verdict: "accept"})
		}
		return rules
	}
	rules := []Rule{
		{In: n.bridge, Destination: n.loopbacks, Verdict: "drop"},
		{In: n.bridge, Source: host(router), Verdict: "drop"},
		{In: n.bridge, ICMP: icmpRouterAdvertisement, Verdict: "drop"},
		{In: n.bridge, ICMP: icmpRedirect, Verdict: "drop"},
		{In: n.bridge, Source: linkLocal, Over: linkLocalRate, Verdict: "drop"},
		// An advertisement says whose the target's address is.
		{In: n.bridge, ICMP: icmpNeighborAdvertisement, Target: host(router), Verdict: "drop"},
	}
	for _, source := range []netip.Prefix{host(n.guest), linkLocal} {
		for _, target := range []netip.Prefix{host(n.guest), linkLocal} {
			rules = append(rules, Rule{In: n.bridge, Source: source, ICMP: icmpNeighborAdvertisement, Target: target, Verdict: "accept"})
		}
	}
	rules = append(rules, Rule{In: n.bridge, ICMP: icmpNeighborAdvertisement, Verdict: "drop"},
		Rule{In: n.bridge, Source: host(n.guest), Destination: host(n.gateway), Verdict: "accept"},
		// Nobody else is there. To redirect the guest, the kernel would look for each neighbour
		// before the forward hook (ip6_forward).
		Rule{In: n.bridge, Destination: network, Verdict: "drop"},
		Rule{In: n.bridge, Source: host(n.guest), Verdict: "accept"})
	rules = append(rules, from(linkLocal, icmpNeighborSolicitation, icmpRouterSolicitation, icmpListenerReport, icmpListenerDone,
		icmpListenerReport2, icmpEchoRequest, icmpEchoReply)...)
	rules = append(rules, Rule{In: n.bridge, Source: linkLocal, Protocol: "UDP", Port: dhcp6Port, Verdict: "accept"})
	// It probes for an address (RFC 4862, 5.4).
	rules = append(rules, from(host(netip.IPv6Unspecified()), icmpNeighborSolicitation, icmpRouterSolicitation, icmpListenerReport2)...)
	return append(rules, Rule{In: n.bridge, Verdict: "drop"})
}

// silent4 keeps a guest off IPv4 in a pod that has no IPv4 address.
func silent4(bridge string) Table {
	return Table{Family: "ip", Name: TableName, Chains: []Chain{
		{Name: "guest", Type: "filter", Hook: "prerouting", Priority: -300, Rules: []Rule{{In: bridge, Verdict: "drop"}}},
	}}
}
