package netsetup

import (
	"fmt"
	"net/netip"
	"slices"
)

// Masquerade asks for a guest in a private network behind the pod's address.
type Masquerade struct {
	// Network is the private IPv4 network, 10.0.2.0/24 when unset: its first
	// address is the gateway's, its second the guest's.
	Network netip.Prefix `json:"network,omitzero"`
	// Network6 is the private IPv6 network, fd10:0:2::/120 when unset. A pod without an IPv6
	// address needs none.
	Network6 netip.Prefix `json:"network6,omitzero"`
	// Ports are those of the pod's address that lead to the guest; all other
	// traffic to the pod stays with the pod's own stack. None listed: everything
	// leads to the guest, ICMP too.
	Ports []Port `json:"ports,omitempty"`
	// Queues is the number of tap queues; 0 means 1.
	Queues int `json:"queues,omitempty"`
}

// Port is a port of the pod's address.
type Port struct {
	// Protocol is TCP or UDP.
	Protocol string `json:"protocol"`
	// Port is 1 to 65535.
	Port uint16 `json:"port"`
}

// PlanMasquerade plans a guest behind the pod's addresses, in each family that the pod has an
// address of. The names, addresses and reachability are KubeVirt's; see the Tables for what is
// stricter. It fails for a private network that holds the pod's own address or gateway.
func PlanMasquerade(facts Facts, m Masquerade) (*Plan, error) {
	plan, err := planMasquerade(facts, m)
	if err == nil {
		err = plan.checkMTU(facts.Link)
	}
	if err != nil {
		return nil, fmt.Errorf("plan masquerade: %w", err)
	}
	return plan, nil
}

func planMasquerade(facts Facts, m Masquerade) (*Plan, error) {
	m, err := m.withDefaults()
	if err != nil {
		return nil, err
	}
	names, err := namesFor(facts.Link)
	if err != nil {
		return nil, err
	}
	plan := &Plan{
		Bridge: Bridge{Name: names.Bridge, MAC: BridgeMAC, MTU: facts.MTU},
		Tap:    Tap{Name: names.Tap, Bridge: names.Bridge, MTU: facts.MTU, Queues: m.Queues, NoLearning: true},
	}
	v4, v6 := addressesLike(facts.Addresses, m.Network), addressesLike(facts.Addresses, m.Network6)
	if len(v4)+len(v6) == 0 {
		return nil, fmt.Errorf("pod interface %q has no address", facts.Link)
	}
	if len(v4) > 0 {
		err = plan.masquerade4(facts, m, v4)
	} else {
		plan.Tables = append(plan.Tables, silent4(names.Bridge))
	}
	if err != nil {
		return nil, err
	}
	if len(v6) > 0 {
		err = plan.masquerade6(facts, m, v6)
	} else {
		// Else the guest could reach by link-local addresses whatever in the pod listens on [::],
		// past the IPv4 rules.
		plan.Sysctls = append(plan.Sysctls, Sysctl{Name: "net/ipv6/conf/" + names.Bridge + "/disable_ipv6", Value: "1", Optional: true})
	}
	return plan, err
}

// masquerade4 adds the guest's place in the private IPv4 network. pod are the pod's addresses.
func (p *Plan) masquerade4(facts Facts, m Masquerade, pod []netip.Addr) error {
	if err := checkConflict(facts, m.Network); err != nil {
		return err
	}
	gateway := m.Network.Addr().Next()
	guest := gateway.Next()
	nat := masqueradeNAT{
		family: "ip", pod: pod, link: facts.Link, bridge: p.Bridge.Name,
		gateway: gateway, guest: guest, loopback: netip.AddrFrom4([4]byte{127, 0, 0, 1}),
		loopbacks: netip.MustParsePrefix("127.0.0.0/8"), ports: m.Ports,
	}
	p.Bridge.Addresses = append(p.Bridge.Addresses, netip.PrefixFrom(gateway, m.Network.Bits()))
	p.Guest, p.Router = []netip.Prefix{netip.PrefixFrom(guest, m.Network.Bits())}, gateway
	p.Tables = append(p.Tables, nat.table(nat.guestRules()), nat.neighbours())
	p.Sysctls = append(p.Sysctls,
		Sysctl{Name: "net/ipv4/ip_forward", Value: "1"},
		// A connection to 127.0.0.1 that is translated to the guest leaves by the
		// bridge, and its replies come in by it, with a loopback address. What this
		// would open to the guest, the table's first chain shuts.
		Sysctl{Name: "net/ipv4/conf/" + p.Bridge.Name + "/route_localnet", Value: "1"})
	return nil
}

func (m Masquerade) withDefaults() (Masquerade, error) {
	if !m.Network.IsValid() {
		m.Network = netip.MustParsePrefix("10.0.2.0/24")
	}
	if !m.Network6.IsValid() {
		m.Network6 = netip.MustParsePrefix("fd10:0:2::/120")
	}
	if m.Queues == 0 {
		m.Queues = 1
	}
	// /30 is the smallest with two host addresses between network and broadcast.
	if n := m.Network; !n.Addr().Is4() || n != n.Masked() || n.Bits() > 30 || !usable(n.Addr()) {
		return m, fmt.Errorf("private network %s: want an IPv4 unicast network of at most 30 bits without host part", n)
	}
	if n := m.Network6; !n.Addr().Is6() || n.Addr().Is4In6() || n != n.Masked() || n.Bits() > 126 || !usable(n.Addr()) || n.Addr().IsLinkLocalUnicast() {
		return m, fmt.Errorf("private network %s: want an IPv6 unicast network of at most 126 bits without host part", n)
	}
	if m.Queues < 1 || m.Queues > maxQueues {
		return m, fmt.Errorf("%d queues: want 1 to %d", m.Queues, maxQueues)
	}
	var ports []Port
	for _, p := range m.Ports {
		if p.Protocol != "TCP" && p.Protocol != "UDP" {
			return m, fmt.Errorf("port %d with protocol %q: want TCP or UDP", p.Port, p.Protocol)
		}
		if p.Port == 0 {
			return m, fmt.Errorf("%s port 0: want 1 to 65535", p.Protocol)
		}
		if !slices.Contains(ports, p) {
			ports = append(ports, p)
		}
	}
	m.Ports = ports
	return m, nil
}

func usable(a netip.Addr) bool {
	return !a.IsLoopback() && !a.IsMulticast() && !a.IsUnspecified() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// checkConflict refuses a private network that would take the route to the pod's
// own address or to its gateway.
func checkConflict(facts Facts, network netip.Prefix) error {
	for _, a := range facts.Addresses {
		if network.Contains(a.Addr()) {
			return fmt.Errorf("pod address %s is inside the private network %s", a.Addr(), network)
		}
	}
	for _, r := range facts.Routes {
		if r.Gateway.IsValid() && network.Contains(r.Gateway) {
			return fmt.Errorf("pod gateway %s is inside the private network %s", r.Gateway, network)
		}
	}
	return nil
}

// addressesLike returns the addresses of the network's family.
func addressesLike(all []netip.Prefix, network netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, a := range all {
		if a.Addr().Is4() == network.Addr().Is4() {
			out = append(out, a.Addr())
		}
	}
	return out
}

// masqueradeNAT holds what the table of one address family depends on.
type masqueradeNAT struct {
	family         string
	pod            []netip.Addr
	link, bridge   string
	gateway, guest netip.Addr
	loopback       netip.Addr // unset where the kernel can lead none of it to the guest
	loopbacks      netip.Prefix
	ports          []Port
}

// table makes the family's table. Beyond KubeVirt's translation it keeps the
// guest from sending under another address and from reaching the pod's loopback,
// keeps others from reaching the guest by routing to its private address, and
// keeps the pod, which forwards now, from routing between strangers.
func (n masqueradeNAT) table(guest []Rule) Table {
	outbound := []Rule{{NotOut: n.bridge, Source: host(n.guest), Verdict: "masquerade"}}
	if n.loopback.IsValid() {
		outbound = append([]Rule{{Out: n.bridge, Source: host(n.loopback), Verdict: "snat", To: n.gateway}}, outbound...)
	}
	return Table{Family: n.family, Name: TableName, Chains: []Chain{
		// Before connection tracking, so that these see what the guest sent, not the
		// replies already translated back to 127.0.0.1.
		{Name: "guest", Type: "filter", Hook: "prerouting", Priority: -300, Rules: guest},
		{Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: -100, Rules: n.inbound()},
		{Name: "output", Type: "nat", Hook: "output", Priority: -100, Rules: n.local()},
		{Name: "forward", Type: "filter", Hook: "forward", Priority: 0, Rules: n.forward()},
		{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100, Rules: outbound},
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

// foreignRate is how many ARP packets a second the guest may send in the name of another address than its own. A guest with
// several cards asks by one card in the name of another card's address (arp_announce), once a second until it has an answer.
const foreignRate = 1

// neighbours limits the addresses that the guest has in ARP. For each address that asks for the gateway the kernel remembers a
// neighbour, in one table for all pods of the node. The kernel forgets neighbours that are older than 5 s when the table is half
// full (neigh_forced_gc), so each such guest can hold few places.
func (n masqueradeNAT) neighbours() Table {
	return Table{Family: "arp", Name: TableName, Chains: []Chain{
		{Name: "guest", Type: "filter", Hook: "input", Priority: 0, Rules: []Rule{
			{In: n.bridge, Sender: host(n.guest), Verdict: "accept"},
			{In: n.bridge, Sender: host(netip.IPv4Unspecified()), Verdict: "accept"}, // it probes for an address
			{In: n.bridge, Over: foreignRate, Verdict: "drop"},
		}},
	}}
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
	if !n.loopback.IsValid() {
		return nil
	}
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
		// Nobody else is in the private network. For each address the pod would ask for a neighbour,
		// and all pods of the node share the kernel's table of neighbours.
		{In: n.bridge, Out: n.bridge, Verdict: "drop"},
		{In: n.bridge, Verdict: "accept"},
		{Out: n.bridge, Connection: "established", Verdict: "accept"},
		{Out: n.bridge, Connection: "dnat", Verdict: "accept"},
		{Out: n.bridge, Verdict: "drop"},
		{In: n.link, Verdict: "drop"},
		// From a network beside the pod's own, also before virt-handler has taken its link.
		{Out: n.link, Verdict: "drop"},
	}
}
