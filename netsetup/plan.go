// Package netsetup connects a virtual machine to a pod's network. A plan is made
// by pure functions from what the CNI plugin left (Facts); Apply, OpenTap and
// ListenDHCP carry it out inside the pod's network namespace and need
// CAP_NET_ADMIN and CAP_SYS_ADMIN there. All that they make belongs to the
// namespace and vanishes with it.
package netsetup

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
)

const (
	// BridgeMAC is the gateway's MAC as every masqueraded guest sees it (KubeVirt's value): a
	// guest that is restarted or migrated keeps a valid ARP entry.
	BridgeMAC = "02:00:00:00:00:00"
	// TapName is the tap's name within the pod.
	TapName = "tap0"

	maxQueues   = 256 // MAX_TAP_QUEUES in drivers/net/tun.c
	maxLinkName = 15  // IFNAMSIZ without the final zero
)

// Masquerade asks for a guest in a private network behind the pod's address.
type Masquerade struct {
	// Network is the private IPv4 network, 10.0.2.0/24 when unset: its first
	// address is the gateway's, its second the guest's.
	Network netip.Prefix `json:"network,omitzero"`
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

// Plan is everything to be made in a pod's network namespace.
type Plan struct {
	Bridge Bridge `json:"bridge"`
	Tap    Tap    `json:"tap"`
	// Guest holds the guest's addresses, with prefix length, the first one for DHCP.
	Guest []netip.Prefix `json:"guest"`
	// Router is the guest's default gateway, if any, and Routes are its further
	// routes, those on the link first.
	Router netip.Addr `json:"router,omitzero"`
	Routes []Route    `json:"routes,omitempty"`
	// Tables are in place before the links are, so that no packet passes unfiltered.
	Tables []Table `json:"tables"`
	// Sysctls are written after the bridge is made, since some are the bridge's.
	Sysctls []Sysctl `json:"sysctls"`
	// Takeover comes last. Without it the pod keeps its interface.
	Takeover *Takeover `json:"takeover,omitempty"`
}

// Lease is what DHCP tells the guest with this MAC of the plan.
func (p *Plan) Lease(mac string) dhcp.Lease {
	lease := dhcp.Lease{ClientMAC: mac, ClientIP: p.Guest[0], ServerIP: p.Bridge.Addresses[0].Addr(), Router: p.Router,
		MTU: uint16(min(p.Bridge.MTU, 1<<16-1))}
	for _, r := range p.Routes {
		lease.Routes = append(lease.Routes, dhcp.Route{Destination: r.Destination, Gateway: r.Gateway})
	}
	return lease
}

// Bridge is the link between the guest's tap and the pod's stack.
type Bridge struct {
	Name string `json:"name"`
	MAC  string `json:"mac"`
	MTU  int    `json:"mtu"`
	// Addresses are those that the guest knows it by: as gateway, with the private
	// network's prefix length, or as DHCP server.
	Addresses []netip.Prefix `json:"addresses"`
}

// Tap is the guest's link. It lives as long as its queues are open.
type Tap struct {
	Name   string `json:"name"`
	Bridge string `json:"bridge"`
	MTU    int    `json:"mtu"`
	Queues int    `json:"queues"`
}

// Sysctl is a kernel setting of the pod's network namespace.
type Sysctl struct {
	// Name is the path below /proc/sys, e.g. net/ipv4/ip_forward.
	Name  string `json:"name"`
	Value string `json:"value"`
	// Optional: a kernel built without the setting has nothing to be set.
	Optional bool `json:"optional,omitempty"`
}

// PlanMasquerade plans a guest behind the pod's IPv4 address. The names,
// addresses and reachability are KubeVirt's; see the Table for what is stricter.
// It fails for a private network that holds the pod's own address or gateway.
func PlanMasquerade(facts Facts, m Masquerade) (*Plan, error) {
	m, err := m.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("plan masquerade: %w", err)
	}
	bridge := bridgeName(facts.Link)
	if facts.Link == "" || len(bridge) > maxLinkName {
		return nil, fmt.Errorf("plan masquerade: bridge name %q for pod interface %q: want at most %d characters", bridge, facts.Link, maxLinkName)
	}
	network := m.Network
	if err := checkConflict(facts, network); err != nil {
		return nil, fmt.Errorf("plan masquerade: %w", err)
	}
	gateway := network.Addr().Next()
	guest := gateway.Next()
	nat := masqueradeNAT{
		family: "ip", pod: addressesLike(facts.Addresses, network), link: facts.Link, bridge: bridge,
		gateway: gateway, guest: guest, loopback: netip.AddrFrom4([4]byte{127, 0, 0, 1}),
		loopbacks: netip.MustParsePrefix("127.0.0.0/8"), ports: m.Ports,
	}
	if len(nat.pod) == 0 {
		return nil, fmt.Errorf("plan masquerade: pod interface %q has no IPv4 address", facts.Link)
	}
	return &Plan{
		Bridge:  Bridge{Name: bridge, MAC: BridgeMAC, MTU: facts.MTU, Addresses: []netip.Prefix{netip.PrefixFrom(gateway, network.Bits())}},
		Tap:     Tap{Name: TapName, Bridge: bridge, MTU: facts.MTU, Queues: m.Queues},
		Guest:   []netip.Prefix{netip.PrefixFrom(guest, network.Bits())},
		Router:  gateway,
		Tables:  []Table{nat.table()},
		Sysctls: masqueradeSysctls(bridge),
	}, nil
}

func masqueradeSysctls(bridge string) []Sysctl {
	return []Sysctl{
		{Name: "net/ipv4/ip_forward", Value: "1"},
		// A connection to 127.0.0.1 that is translated to the guest leaves by the
		// bridge, and its replies come in by it, with a loopback address. What this
		// would open to the guest, the table's first chain shuts.
		{Name: "net/ipv4/conf/" + bridge + "/route_localnet", Value: "1"},
		// Until IPv6 is planned: else the guest could reach by link-local addresses
		// whatever in the pod listens on [::], past the IPv4 rules.
		{Name: "net/ipv6/conf/" + bridge + "/disable_ipv6", Value: "1", Optional: true},
	}
}

func (m Masquerade) withDefaults() (Masquerade, error) {
	if !m.Network.IsValid() {
		m.Network = netip.MustParsePrefix("10.0.2.0/24")
	}
	if m.Queues == 0 {
		m.Queues = 1
	}
	// /30 is the smallest with two host addresses between network and broadcast.
	if n := m.Network; !n.Addr().Is4() || n != n.Masked() || n.Bits() > 30 || !usable(n.Addr()) {
		return m, fmt.Errorf("private network %s: want an IPv4 unicast network of at most 30 bits without host part", n)
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
