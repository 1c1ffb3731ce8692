package netsetup

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

const (
	// dhcpPort is the server's (RFC 2131).
	dhcpPort, dhcpClientPort = 67, 68
)

// bridgedServer is the DHCP server's address on every bridge of the bridge binding (KubeVirt's
// choice). It is link-local, so that it hides no route of the guest's.
func bridgedServer() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 75, 10}) }

// Bridged asks for a guest that takes the place of the pod on a network: it
// gets the pod's IPv4 addresses and routes.
type Bridged struct {
	// MAC is the guest's. Empty: the pod interface's, which the network knows.
	MAC string `json:"mac,omitempty"`
	// Beside: the network is beside the pod's own. It may leave the pod without an IPv4 address.
	// Then the guest is on that network with its MAC and any address, and nothing in the pod
	// speaks there.
	Beside bool `json:"beside,omitempty"`
	// Managed: the network itself gives the guest its addresses, by whatever means, and nothing in the pod
	// speaks there. If the pod's interface has addresses, the guest is held to them.
	Managed bool `json:"managed,omitempty"`
	// Queues is the number of tap queues; 0 means 1.
	Queues int `json:"queues,omitempty"`
}

// Takeover moves the pod's interface behind the bridge. A stand-in keeps its name,
// MAC and addresses, which the CNI plugin looks for when the pod is deleted, and
// which virt-handler reads again when it is restarted (ReadFacts).
type Takeover struct {
	// Link is the pod interface's name, and the stand-in's in the end.
	Link string `json:"link"`
	// NIC is the pod interface's new name, as a port of the bridge.
	NIC string `json:"nic"`
	// NICMAC is the pod interface's new MAC: a bridge takes frames for a port's own MAC itself,
	// and would keep them from the guest.
	NICMAC string `json:"nicMAC"`
	// SharedMAC: the pod interface has the guest's MAC nevertheless, and the bridge is made to
	// forget whose MAC it is.
	SharedMAC bool `json:"sharedMAC,omitempty"`
	// StandIn is the stand-in's name while it is made.
	StandIn string `json:"standIn"`
	// MAC, MTU and Addresses are the CNI plugin's, for the stand-in.
	MAC       string         `json:"mac"`
	MTU       int            `json:"mtu"`
	Addresses []netip.Prefix `json:"addresses"`
	// Routes are the CNI plugin's for IPv4. The kernel forgets them when the
	// interface goes down, so they are kept in a table that no rule looks up.
	Routes []Route `json:"routes,omitempty"`
}

// PlanBridge plans a guest that has the pod's address. Names and addresses are KubeVirt's, and
// so is the restriction to IPv4; see bridgedTable for what is stricter.
func PlanBridge(facts Facts, b Bridged) (*Plan, error) {
	plan, err := planBridge(facts, b)
	if err == nil {
		err = plan.checkMTU(facts.Link)
	}
	if err != nil {
		return nil, fmt.Errorf("plan bridge: %w", err)
	}
	return plan, nil
}

func planBridge(facts Facts, b Bridged) (*Plan, error) {
	if b.MAC == "" {
		b.MAC = facts.MAC
	}
	if b.Queues == 0 {
		b.Queues = 1
	}
	if b.Queues < 1 || b.Queues > maxQueues {
		return nil, fmt.Errorf("%d queues: want 1 to %d", b.Queues, maxQueues)
	}
	names, err := namesFor(facts.Link)
	if err != nil {
		return nil, err
	}
	switch facts.Kind {
	case kindIPVLAN:
		return nil, fmt.Errorf("pod interface %q is an ipvlan, which shares its MAC with its node: no guest can be bridged to it", facts.Link)
	case kindDevice: // it outlives the pod, and its plugin looks for it by its name to give it back
		return nil, fmt.Errorf("pod interface %q is a network card of the node (host-device, SR-IOV): no guest can be bridged to it", facts.Link)
	}
	guest, err := ethernet(b.MAC)
	if err != nil {
		return nil, err
	}
	pod, err := ethernet(facts.MAC)
	if err != nil { // of the kernel's links, only those without Ethernet's header have another MAC, or none
		return nil, fmt.Errorf("pod interface %q is no Ethernet link, and no guest can be bridged to it: %w", facts.Link, err)
	}
	mac := otherMAC(pod, guest)
	addresses := ipv4Of(facts.Addresses)
	if len(addresses) == 0 && !b.Beside && !b.Managed {
		return nil, fmt.Errorf("pod interface %q has no IPv4 address", facts.Link)
	}
	routes := ipv4Routes(facts.Routes)
	plan := &Plan{
		Bridge: Bridge{Name: names.Bridge, MAC: mac, MTU: facts.MTU},
		Tap:    Tap{Name: names.Tap, Bridge: names.Bridge, MTU: facts.MTU, Queues: b.Queues},
		Takeover: &Takeover{Link: facts.Link, NIC: names.NIC, NICMAC: mac, StandIn: names.StandIn,
			MAC: facts.MAC, MTU: facts.MTU, Addresses: facts.Addresses, Routes: routes},
	}
	if facts.Kind == kindMACVLAN { // it gets frames for its own MAC only
		plan.Takeover.NICMAC, plan.Takeover.SharedMAC = guest.String(), true
	}
	if b.Managed && len(facts.Addresses) > 0 {
		plan.Tables = []Table{managedTable(names, guest.String(), facts.Addresses)}
		plan.Sysctls = append([]Sysctl{arpIgnore(names.Bridge)}, wireSysctls(names.Bridge)...)
		return plan, nil
	}
	if len(addresses) == 0 {
		plan.Tables = []Table{wireTable(names, guest.String())}
		plan.Sysctls = wireSysctls(names.Bridge)
		return plan, nil
	}
	plan.Bridge.Addresses = []netip.Prefix{host(bridgedServer())}
	plan.Tables = []Table{bridgedTable(names, guest.String(), mac, addresses, b.Beside)}
	plan.Sysctls = bridgedSysctls(names.Bridge)
	plan.Guest, plan.Router, plan.Routes = told(addresses, routes)
	return plan, nil
}

func ethernet(mac string) (net.HardwareAddr, error) {
	out, err := net.ParseMAC(mac)
	if err != nil || len(out) != 6 || out[0]&1 != 0 {
		return nil, fmt.Errorf("MAC %q: want six octets of one interface", mac)
	}
	return out, nil
}

// otherMAC is a MAC for the pod interface and the bridge that neither pod nor
// guest has. It is the pod's own but for two bits, so that no other pod has it.
func otherMAC(pod, guest net.HardwareAddr) string {
	out := slices.Clone(pod)
	out[0] |= 2 // locally administered
	for bit := byte(4); ; bit <<= 1 {
		out[0] ^= bit
		if out.String() != guest.String() && out.String() != pod.String() {
			return out.String()
		}
	}
}

// GuestAddresses are the addresses, without prefix length, that a guest gets which is bridged to
// an interface: those for IPv4.
func GuestAddresses(facts Facts) (out []string) {
	for _, a := range ipv4Of(facts.Addresses) {
		out = append(out, a.Addr().String())
	}
	return out
}

func ipv4Of(all []netip.Prefix) (out []netip.Prefix) {
	for _, a := range all {
		if a.Addr().Is4() {
			out = append(out, a)
		}
	}
	return out
}

func ipv4Routes(all []Route) (out []Route) {
	for _, r := range all {
		if r.Destination.Addr().Is4() {
			out = append(out, r)
		}
	}
	return out
}

// told returns what DHCP tells the guest: its addresses, the default gateway, and the routes
// that do not follow from the two. If the CNI plugin has no on-link route for the address's
// network (ptp: each neighbour is reached over the host), the guest must not make one either,
// and is told a prefix of 32 bits.
func told(addresses []netip.Prefix, routes []Route) (guest []netip.Prefix, router netip.Addr, rest []Route) {
	for _, a := range addresses {
		onLink := slices.ContainsFunc(routes, func(r Route) bool { return !r.Gateway.IsValid() && r.Destination == a.Masked() })
		if !onLink {
			a = host(a.Addr())
		}
		guest = append(guest, a)
	}
	for _, r := range routes {
		switch {
		case r.Destination.Bits() == 0 && r.Gateway.IsValid() && !router.IsValid():
			router = r.Gateway
		case r.Destination == guest[0].Masked(): // the guest makes it itself
		default:
			rest = append(rest, r)
		}
	}
	// Clients add routes in this order, and add none over a gateway that they cannot reach yet.
	slices.SortStableFunc(rest, func(a, b Route) int {
		switch {
		case a.Gateway.IsValid() == b.Gateway.IsValid():
			return 0
		case a.Gateway.IsValid():
			return 1
		}
		return -1
	})
	return guest, router, rest
}

func bridgedSysctls(bridge string) []Sysctl {
	return append([]Sysctl{
		arpIgnore(bridge),
		// For the same reason the kernel would take the guest's renewals, which come from the
		// pod's address, for forged ones. The larger of rp_filter's values for all links and
		// for this link counts; 2 lets through what 1 would not.
		{Name: "net/ipv4/conf/" + bridge + "/accept_local", Value: "1"},
		{Name: "net/ipv4/conf/" + bridge + "/rp_filter", Value: "2"},
	}, wireSysctls(bridge)...)
}

// arpIgnore is for a stand-in with the pod's address, which the kernel takes for a local one: without arp_ignore, the pod
// would answer when the guest asks whether its address is taken.
func arpIgnore(bridge string) Sysctl {
	return Sysctl{Name: "net/ipv4/conf/" + bridge + "/arp_ignore", Value: "1"}
}

// wireSysctls keep the pod's stack off a network.
func wireSysctls(bridge string) []Sysctl {
	return []Sysctl{
		{Name: "net/ipv6/conf/" + bridge + "/disable_ipv6", Value: "1", Optional: true},
		// The pod's IP rules are not for frames between guest and network. On nodes with
		// br_netfilter these would be tracked as connections twice.
		{Name: "net/bridge/bridge-nf-call-iptables", Value: "0", Optional: true},
		{Name: "net/bridge/bridge-nf-call-ip6tables", Value: "0", Optional: true},
		{Name: "net/bridge/bridge-nf-call-arptables", Value: "0", Optional: true},
	}
}

// bridgedTable restricts the guest to its MAC and its addresses. It keeps the guest's DHCP
// inside the pod: no request reaches the network, and no server there can answer. It cuts off
// the pod's own stack, which has the same address, from the network. announced lets the guest's
// switches hear by RARP where the guest is, which QEMU sends after a migration.
func bridgedTable(names names, guestMAC, bridgeMAC string, addresses []netip.Prefix, announced bool) Table {
	tap, nic := names.Tap, names.NIC
	const arp, ip = "arp", "ip"
	broadcast := host(netip.AddrFrom4([4]byte{255, 255, 255, 255}))
	none := host(netip.IPv4Unspecified())
	question := Rule{In: tap, EtherType: ip, Protocol: "UDP", Port: dhcpPort, Verdict: "deliver", ToMAC: bridgeMAC}
	fresh := question
	fresh.Source = none
	guest := []Rule{
		{In: tap, Tag: "8021q", Verdict: "drop"},
		{In: tap, Tag: "8021ad", Verdict: "drop"},
		{In: tap, NotSourceMAC: guestMAC, Verdict: "drop"},
		{In: tap, EtherType: arp, NotSenderMAC: guestMAC, Verdict: "drop"},
		fresh,
	}
	for _, a := range addresses {
		own := host(a.Addr())
		// A renewal is addressed to the server, and so leaves by the default gateway.
		renewal, rebinding := question, question
		renewal.Source, renewal.Destination = own, host(bridgedServer())
		rebinding.Source, rebinding.Destination = own, broadcast
		guest = append(guest, renewal, rebinding, probe(tap, own),
			Rule{In: tap, EtherType: arp, Sender: own, Verdict: "accept"},
			Rule{In: tap, EtherType: ip, Source: own, Verdict: "accept"})
	}
	if announced {
		guest = append(guest, Rule{In: tap, EtherType: "rarp", Verdict: "accept"})
	}
	guest = append(guest, Rule{In: tap, Verdict: "drop"})
	return Table{Family: "bridge", Name: names.Table, Chains: []Chain{
		{Name: "guest", Type: "filter", Hook: "prerouting", Priority: -300, Rules: guest},
		{Name: "input", Type: "filter", Hook: "input", Priority: 0, Rules: []Rule{
			{In: tap, EtherType: arp, Verdict: "accept"},
			{In: tap, EtherType: ip, Protocol: "UDP", Port: dhcpPort, Verdict: "accept"},
			{In: tap, Verdict: "drop"},
			{In: nic, Verdict: "drop"},
		}},
		{Name: "forward", Type: "filter", Hook: "forward", Priority: 0, Rules: []Rule{
			{In: nic, EtherType: ip, Protocol: "UDP", Port: dhcpClientPort, Verdict: "drop"},
		}},
		{Name: "output", Type: "filter", Hook: "output", Priority: 0, Rules: []Rule{
			{Out: nic, Verdict: "drop"},
		}},
	}}
}

// wireTable holds the guest to its MAC, in ARP too, on a network that gives no addresses. The
// guest may use any address, IPv6 and VLAN tags: what these may do is the network's to say. The
// pod's stack neither hears nor speaks there.
func wireTable(names names, guestMAC string) Table {
	return quietTable(names, []Rule{
		{In: names.Tap, NotSourceMAC: guestMAC, Verdict: "drop"},
		{In: names.Tap, EtherType: "arp", NotSenderMAC: guestMAC, Verdict: "drop"},
	})
}

// quietTable has rules for the guest's frames, and keeps the pod's stack from hearing and speaking.
func quietTable(names names, guest []Rule) Table {
	return Table{Family: "bridge", Name: names.Table, Chains: []Chain{
		{Name: "guest", Type: "filter", Hook: "prerouting", Priority: -300, Rules: guest},
		{Name: "input", Type: "filter", Hook: "input", Priority: 0, Rules: []Rule{
			{In: names.Tap, Verdict: "drop"},
			{In: names.NIC, Verdict: "drop"},
		}},
		{Name: "output", Type: "filter", Hook: "output", Priority: 0, Rules: []Rule{
			{Out: names.Tap, Verdict: "drop"},
			{Out: names.NIC, Verdict: "drop"},
		}},
	}}
}

// ErrUnfiltered means that the kernel has no nftables for bridges
// (CONFIG_NF_TABLES_BRIDGE, which no distribution leaves out): all else of the plan
// is in place, but nothing holds the guest to its own addresses.
var ErrUnfiltered = errors.New("the kernel has no nftables for bridges: the guest may send from any address")
