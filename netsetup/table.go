package netsetup

import "net/netip"

// TableName names every nftables table that this package makes. It touches no other table.
const TableName = "kubeqemu"

// Table is an nftables table, replaced as a whole.
type Table struct {
	// Family is ip, ip6 or bridge. A kernel may lack the last (ErrUnfiltered).
	Family string  `json:"family"`
	Name   string  `json:"name"`
	Chains []Chain `json:"chains"`
}

// Chain is a base chain with policy accept.
type Chain struct {
	Name string `json:"name"`
	// Type is filter or nat.
	Type string `json:"type"`
	// Hook is prerouting, input, forward, output or postrouting.
	Hook string `json:"hook"`
	// Priority orders the chains of one hook; connection tracking is at -200.
	Priority int32  `json:"priority"`
	Rules    []Rule `json:"rules"`
}

// Rule is one nftables rule: a packet that matches every field that is set meets
// the verdict.
type Rule struct {
	// In and Out match interfaces by name; NotOut matches all outgoing interfaces but one.
	In     string `json:"in,omitempty"`
	Out    string `json:"out,omitempty"`
	NotOut string `json:"notOut,omitempty"`
	// NotSourceMAC, in a bridge table, matches frames from any MAC but this one.
	NotSourceMAC string `json:"notSourceMAC,omitempty"`
	// Tag, in a bridge table, is 8021q or 8021ad: a frame with that VLAN tag.
	Tag string `json:"tag,omitempty"`
	// EtherType, in a bridge table, is arp or ip; there, the fields below need it. It is the
	// type behind a VLAN tag.
	EtherType string `json:"etherType,omitempty"`
	// Sender and NotSenderMAC match the sender in an ARP packet: its address, and any MAC but
	// this one.
	Sender       netip.Prefix `json:"sender,omitzero"`
	NotSenderMAC string       `json:"notSenderMAC,omitempty"`
	// Source and Destination match a network.
	Source      netip.Prefix `json:"source,omitzero"`
	Destination netip.Prefix `json:"destination,omitzero"`
	// Protocol is TCP or UDP, Port its destination port.
	Protocol string `json:"protocol,omitempty"`
	Port     uint16 `json:"port,omitempty"`
	// Connection is invalid, established (or related) or dnat.
	Connection string `json:"connection,omitempty"`
	// Verdict is accept, drop, dnat, snat or masquerade; or deliver, in a bridge table: the
	// frame goes to the bridge itself, whatever its destination.
	Verdict string `json:"verdict"`
	// ToMAC is the bridge's MAC, for deliver.
	ToMAC string `json:"toMAC,omitempty"`
	// To is the new address for dnat and snat.
	To netip.Addr `json:"to,omitzero"`
}

// masqueradeNAT holds what the table of one address family depends on.
type masqueradeNAT struct {
	family         string
	pod            []netip.Addr
	link, bridge   string
	gateway, guest netip.Addr
	loopback       netip.Addr
	loopbacks      netip.Prefix
	ports          []Port
}

// table makes the family's table. Beyond KubeVirt's translation it keeps the
// guest from sending under another address and from reaching the pod's loopback,
// keeps others from reaching the guest by routing to its private address, and
// keeps the pod, which forwards now, from routing between strangers.
func (n masqueradeNAT) table() Table {
	return Table{Family: n.family, Name: TableName, Chains: []Chain{
		// Before connection tracking, so that these see what the guest sent, not the
		// replies already translated back to 127.0.0.1.
		{Name: "guest", Type: "filter", Hook: "prerouting", Priority: -300, Rules: n.guestRules()},
		{Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: -100, Rules: n.inbound()},
		{Name: "output", Type: "nat", Hook: "output", Priority: -100, Rules: n.local()},
		{Name: "forward", Type: "filter", Hook: "forward", Priority: 0, Rules: n.forward()},
		{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100, Rules: []Rule{
			{Out: n.bridge, Source: host(n.loopback), Verdict: "snat", To: n.gateway},
			{NotOut: n.bridge, Source: host(n.guest), Verdict: "masquerade"},
		}},
	}}
}

func (n masqueradeNAT) guestRules() []Rule {
	return []Rule{
		{In: n.bridge, Destination: n.loopbacks, Verdict: "drop"},
		{In: n.bridge, Source: host(n.guest), Verdict: "accept"},
		// A DHCP client without an address.
		{In: n.bridge, Source: host(netip.IPv4Unspecified()), Protocol: "UDP", Port: dhcpPort, Verdict: "accept"},
		{In: n.bridge, Verdict: "drop"},
	}
}

// inbound leads new connections to the pod's address to the guest.
func (n masqueradeNAT) inbound() []Rule {
	var rules []Rule
	for _, pod := range n.pod {
		rules = append(rules, n.toGuest(Rule{In: n.link, Destination: host(pod)})...)
	}
	return rules
}

// local leads what other containers of the pod send to 127.0.0.1 to the guest.
func (n masqueradeNAT) local() []Rule {
	return n.toGuest(Rule{Destination: host(n.loopback)})
}

func (n masqueradeNAT) toGuest(match Rule) []Rule {
	match.Verdict, match.To = "dnat", n.guest
	if len(n.ports) == 0 {
		return []Rule{match}
	}
	var rules []Rule
	for _, p := range n.ports {
		match.Protocol, match.Port = p.Protocol, p.Port
		rules = append(rules, match)
	}
	return rules
}

func (n masqueradeNAT) forward() []Rule {
	return []Rule{
		// No translation is applied to an invalid packet: it would leave with the private address.
		{In: n.bridge, Connection: "invalid", Verdict: "drop"},
		{In: n.bridge, Verdict: "accept"},
		{Out: n.bridge, Connection: "established", Verdict: "accept"},
		{Out: n.bridge, Connection: "dnat", Verdict: "accept"},
		{Out: n.bridge, Verdict: "drop"},
		{In: n.link, Verdict: "drop"},
	}
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
