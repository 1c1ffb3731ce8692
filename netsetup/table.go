package netsetup

import "net/netip"

// TableName begins the name of every nftables table that this package makes, and is the whole
// name of those for the pod's own interface. This package touches no other table.
const TableName = "kubeqemu"

// Table is an nftables table, replaced as a whole.
type Table struct {
	// Family is ip, ip6, arp or bridge. A kernel may lack the last two (ErrManyNeighbours, ErrUnfiltered).
	Family string  `json:"family"`
	Name   string  `json:"name"`
	Chains []Chain `json:"chains"`
}

// Chain is a base chain with policy accept.
type Chain struct {
	Name string `json:"name"`
	// Type is filter or nat.
	Type string `json:"type"`
	// Hook is prerouting, input, forward, output or postrouting. Family arp has only input and output.
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
	// EtherType, in a bridge table, is arp, rarp, ip or ip6; there, the fields below need it. It is the
	// type behind a VLAN tag.
	EtherType string `json:"etherType,omitempty"`
	// Sender and NotSenderMAC, in a bridge or arp table, match the sender in an ARP packet: its
	// address, and any MAC but this one.
	Sender       netip.Prefix `json:"sender,omitzero"`
	NotSenderMAC string       `json:"notSenderMAC,omitempty"`
	// Source and Destination match a network.
	Source      netip.Prefix `json:"source,omitzero"`
	Destination netip.Prefix `json:"destination,omitzero"`
	// Protocol is TCP or UDP, Port its destination port.
	Protocol string `json:"protocol,omitempty"`
	Port     uint16 `json:"port,omitempty"`
	// ICMP, in an ip6 table or with the type ip6, is the type of an ICMPv6 message. Target is the address that a
	// neighbour solicitation or advertisement is about, or with the type arp the address that an ARP packet is about.
	ICMP   uint8        `json:"icmp,omitempty"`
	Target netip.Prefix `json:"target,omitzero"`
	// Fragment, with the type ip6, matches packets that have a fragment header.
	Fragment bool `json:"fragment,omitempty"`
	// Over matches those packets that exceed so many a second.
	Over uint64 `json:"over,omitempty"`
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

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
