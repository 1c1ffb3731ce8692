package netsetup

import "net/netip"

// dhcp6ClientPort is the client's (RFC 8415, 7.2).
const dhcp6ClientPort = 546

// managedTable holds the guest to its MAC and to the addresses that the plugin gave the pod. The guest asks the network's own
// servers for them, by DHCP and router solicitation, and is no such server itself. QEMU's announcement after a migration, by
// RARP, passes.
func managedTable(names names, guestMAC string, addresses []netip.Prefix) Table {
	tap := names.Tap
	none := host(netip.IPv4Unspecified())
	rules := []Rule{
		{In: tap, Tag: "8021q", Verdict: "drop"},
		{In: tap, Tag: "8021ad", Verdict: "drop"},
		{In: tap, NotSourceMAC: guestMAC, Verdict: "drop"},
		{In: tap, EtherType: "arp", NotSenderMAC: guestMAC, Verdict: "drop"},
		{In: tap, EtherType: "rarp", Verdict: "accept"},
		// What DHCP servers say to clients.
		{In: tap, EtherType: "ip", Protocol: "UDP", Port: dhcpClientPort, Verdict: "drop"},
		{In: tap, EtherType: "ip6", Protocol: "UDP", Port: dhcp6ClientPort, Verdict: "drop"},
	}
	if len(ipv4Of(addresses)) > 0 {
		rules = append(rules, Rule{In: tap, EtherType: "ip", Source: none, Protocol: "UDP", Port: dhcpPort, Verdict: "accept"})
	}
	var own6 []netip.Prefix
	for _, a := range addresses {
		own := host(a.Addr())
		if a.Addr().Is6() {
			own6 = append(own6, own)
			continue
		}
		rules = append(rules, probe(tap, own), Rule{In: tap, EtherType: "arp", Sender: own, Verdict: "accept"}, Rule{In: tap, EtherType: "ip", Source: own, Verdict: "accept"})
	}
	if len(own6) > 0 {
		rules = append(rules, managedRules6(tap, own6)...)
	}
	return quietTable(names, append(rules, Rule{In: tap, Verdict: "drop"}))
}

// probe accepts the guest's question whether its address is taken. A question for another's address would deny that address to its owner
// (RFC 5227, 2.1.1).
func probe(tap string, own netip.Prefix) Rule {
	return Rule{In: tap, EtherType: "arp", Sender: host(netip.IPv4Unspecified()), Target: own, Verdict: "accept"}
}

// managedRules6 are those for IPv6. A guest makes its link-local address itself, so the guest may have any.
func managedRules6(tap string, own []netip.Prefix) []Rule {
	linkLocal := netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfe, 0x80}), 10)
	unspecified := host(netip.IPv6Unspecified())
	sources := append([]netip.Prefix{linkLocal}, own...)
	rules := []Rule{
		// Routers and DHCPv6 servers speak from link-local addresses. Fragments could hide from the rules below what such a message is.
		{In: tap, EtherType: "ip6", Source: linkLocal, Fragment: true, Verdict: "drop"},
		{In: tap, EtherType: "ip6", ICMP: icmpRouterAdvertisement, Verdict: "drop"},
		{In: tap, EtherType: "ip6", ICMP: icmpRedirect, Verdict: "drop"},
	}
	for _, source := range sources {
		for _, target := range sources {
			rules = append(rules, Rule{In: tap, EtherType: "ip6", Source: source, ICMP: icmpNeighborAdvertisement, Target: target, Verdict: "accept"})
		}
	}
	rules = append(rules, Rule{In: tap, EtherType: "ip6", ICMP: icmpNeighborAdvertisement, Verdict: "drop"})
	// A probe for another's address would deny that address to its owner (RFC 4862, 5.4.3).
	for _, target := range sources {
		rules = append(rules, Rule{In: tap, EtherType: "ip6", Source: unspecified, ICMP: icmpNeighborSolicitation, Target: target, Verdict: "accept"})
	}
	for _, message := range []uint8{icmpRouterSolicitation, icmpListenerReport, icmpListenerReport2} {
		rules = append(rules, Rule{In: tap, EtherType: "ip6", Source: unspecified, ICMP: message, Verdict: "accept"})
	}
	for _, source := range sources {
		rules = append(rules, Rule{In: tap, EtherType: "ip6", Source: source, Verdict: "accept"})
	}
	return rules
}
