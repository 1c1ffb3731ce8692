// Package netsetup connects a virtual machine to a pod's network. A plan is made
// by pure functions from what the CNI plugin left (Facts); Apply, OpenTap and
// ListenDHCP carry it out inside the pod's network namespace and need
// CAP_NET_ADMIN and CAP_SYS_ADMIN there. All that they make belongs to the
// namespace and vanishes with it.
package netsetup

import (
	"fmt"
	"net/netip"

	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
)

const (
	// BridgeMAC is the gateway's MAC as every masqueraded guest sees it (KubeVirt's value): a
	// guest that is restarted or migrated keeps a valid ARP entry.
	BridgeMAC = "02:00:00:00:00:00"
	// TapName is the name, within the pod, of the tap for the pod's own interface.
	TapName = "tap0"

	maxQueues = 256 // MAX_TAP_QUEUES in drivers/net/tun.c
	// minServedMTU carries the DHCP messages that every client takes (RFC 2131, 2): clients put no fragments together.
	minServedMTU = 576
	// maxMTU is a tap's: 65535 with the Ethernet header (tun_net_initialize in drivers/net/tun.c).
	maxMTU      = 65535 - 14
	maxLinkName = 15 // IFNAMSIZ without the final zero
)

// Plan is everything to be made in a pod's network namespace.
type Plan struct {
	Bridge Bridge `json:"bridge"`
	Tap    Tap    `json:"tap"`
	// Guest holds the guest's IPv4 addresses, with prefix length, the first one for DHCP. Without any,
	// the network serves the guest itself.
	Guest []netip.Prefix `json:"guest,omitempty"`
	// Router is the guest's default gateway, if any, and Routes are its further
	// routes, those on the link first.
	Router netip.Addr `json:"router,omitzero"`
	Routes []Route    `json:"routes,omitempty"`
	// IPv6 is the guest's place in a private IPv6 network, if it has one.
	IPv6 *GuestIPv6 `json:"ipv6,omitempty"`
	// Tables are in place before the links are, so that no packet passes unfiltered.
	Tables []Table `json:"tables"`
	// Sysctls are written after the bridge is made, since some are the bridge's.
	Sysctls []Sysctl `json:"sysctls"`
	// Takeover comes last. Without it the pod keeps its interface.
	Takeover *Takeover `json:"takeover,omitempty"`
}

// checkMTU refuses an interface on whose MTU no guest can be.
func (p *Plan) checkMTU(link string) error {
	mtu := p.Bridge.MTU
	if mtu > maxMTU {
		return fmt.Errorf("pod interface %q has the MTU %d, and a tap has %d at most: set a smaller mtu in the network's configuration", link, mtu, maxMTU)
	}
	if p.Serves() && mtu < minServedMTU {
		return fmt.Errorf("pod interface %q has the MTU %d, and DHCP needs %d to tell the guest its address: set a larger mtu in the network's configuration", link, mtu, minServedMTU)
	}
	return nil
}

// Serves says whether the guest gets an IPv4 address by DHCP from the pod.
func (p *Plan) Serves() bool { return len(p.Guest) > 0 }

// Lease is what DHCP tells the guest with this MAC of the plan, which Serves.
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
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// Tap is the guest's link. It lives as long as its queues are open.
type Tap struct {
	Name   string `json:"name"`
	Bridge string `json:"bridge"`
	MTU    int    `json:"mtu"`
	Queues int    `json:"queues"`
	// NoLearning: the bridge does not remember the MACs that come from the guest. It would remember as many as the guest
	// makes up, and needs none of them where the tap is its only port.
	NoLearning bool `json:"noLearning,omitempty"`
}

// Sysctl is a kernel setting of the pod's network namespace.
type Sysctl struct {
	// Name is the path below /proc/sys, e.g. net/ipv4/ip_forward.
	Name  string `json:"name"`
	Value string `json:"value"`
	// From is the only value that is replaced; any, when empty.
	From string `json:"from,omitempty"`
	// Optional: a kernel built without the setting has nothing to be set.
	Optional bool `json:"optional,omitempty"`
}
