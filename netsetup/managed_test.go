package netsetup

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// newManaged has a guest whose network serves it. The guest has the address of the pod as if the network's server had given
// it.
func newManaged(t *testing.T) *pod {
	t.Helper()
	p := newBridged(t, networks()["bridge"], Bridged{Managed: true})
	p.run(p.pod, nil, "ip", "addr", "add", "fd00:88::5/64", "dev", "eth0", "nodad")
	p.replan(Bridged{Managed: true})
	p.run(p.other, nil, "ip", "addr", "add", "fd00:88::6/64", "dev", "eth0", "nodad")
	if err := Apply(p.pod, p.plan); err != nil {
		t.Fatal(err)
	}
	queues, err := OpenTap(p.pod, p.plan)
	if err != nil {
		t.Fatal(err)
	}
	p.connectGuest(queues)
	p.run(p.guest, nil, "ip", "link", "set", guestLink, "up", "address", p.guestMAC)
	p.run(p.guest, nil, "ip", "addr", "add", p.podAddress()+"/24", "dev", guestLink)
	p.run(p.guest, nil, "ip", "addr", "add", "fd00:88::5/64", "dev", guestLink, "nodad")
	return p
}

// TestManagedGuest: the guest reaches its network by both families with the pod's addresses and MAC, its DHCP goes to the network,
// and nothing of the pod speaks there. With others' addresses, as a router or a DHCP server the guest is not heard.
func TestManagedGuest(t *testing.T) {
	p := newManaged(t)
	if p.plan.Serves() || p.plan.IPv6 != nil {
		t.Fatalf("the pod serves the guest: %+v", p.plan)
	}
	own, other := p.podAddress(), p.addressOf(p.other)
	p.serveTCP(p.other, ":8080")
	p.serveTCP(p.pod, ":9092") // on the pod's address, which the guest has
	p.reach(p.guest, other+":8080", own)
	p.serveTCP6(p.other, "[fd00:88::6]:8081")
	p.reach6(p.guest, "[fd00:88::6]:8081", "fd00:88::5")
	comes := func(match string, attempt func()) { p.t.Helper(); p.comes(p.node, frames(match), attempt) }
	heard := func(match string, attempt func()) bool {
		p.t.Helper()
		return p.seen(p.node, frames(match), func() {
			attempt()
			// A frame that is heard comes after what is not.
			comes("arp daddr ip "+own+" arp saddr ether "+p.guestMAC, func() { p.sendARP(p.guestMAC, own) })
		})
	}

	comes("ether saddr "+p.guestMAC+" udp dport 67", func() {
		p.try("busybox", "udhcpc", "-i", guestLink, "-n", "-q", "-t", "1", "-T", "1", "-s", "/bin/true")
	})
	router := append([]byte{icmpRouterAdvertisement, 0, 0, 0, 64, 0, 0x07, 0x08}, make([]byte, 8)...)
	mine := ""
	for _, line := range strings.Split(p.run(p.guest, nil, "ip", "-6", "-o", "addr", "show", "dev", guestLink, "scope", "link"), "\n") {
		if fields := strings.Fields(line); len(fields) > 3 {
			mine, _, _ = strings.Cut(fields[3], "/")
		}
	}
	if mine == "" {
		t.Fatal("the guest has no link-local address")
	}
	comes("icmpv6 type nd-neighbor-advert "+about("fd00:88::5"), func() { p.sendICMP("fd00:88::5", "ff02::1", neighbour("fd00:88::5")) })
	comes("icmpv6 type nd-neighbor-solicit ip6 saddr :: "+about("fd00:88::5"), func() { p.sendIPv6("::", unix.IPPROTO_ICMPV6, solicitation("fd00:88::5")) })
	comes("icmpv6 type nd-neighbor-solicit ip6 saddr :: "+about("fe80::1:2"), func() { p.sendIPv6("::", unix.IPPROTO_ICMPV6, solicitation("fe80::1:2")) })
	comes("arp saddr ip 0.0.0.0", func() { p.sendARPFor(p.guestMAC, "0.0.0.0", own) })
	// A first fragment, of which the rest may say anything, and a fragment behind another extension header.
	fragment := append([]byte{unix.IPPROTO_ICMPV6, 0, 0, 1, 0, 0, 0, 9}, solicitation("fd00:88::6")...)
	behind := append([]byte{unix.IPPROTO_FRAGMENT, 0, 1, 4, 0, 0, 0, 0}, fragment...)
	comes("ip6 nexthdr 60", func() { p.sendIPv6("fd00:88::5", unix.IPPROTO_DSTOPTS, behind) })
	comes("ip6 nexthdr 44", func() { p.sendIPv6("fd00:88::5", unix.IPPROTO_FRAGMENT, fragment) })
	// Each match names the frame that is sent. The guest's kernel sends frames of its own meanwhile.
	for name, attempt := range map[string]struct {
		match string
		send  func()
	}{
		"router advertisement":         {"icmpv6 type nd-router-advert", func() { p.sendICMP(mine, "ff02::1", router) }},
		"another's advertisement":      {"icmpv6 type nd-neighbor-advert " + about("fd00:88::6"), func() { p.sendICMP(mine, "ff02::1", neighbour("fd00:88::6")) }},
		"another IPv6 address":         {"ip6 saddr fd00:88::77", func() { p.sendICMP("fd00:88::77", "ff02::1", neighbour("fd00:88::5")) }},
		"ARP of another address":       {"arp saddr ip 10.88.0.77", func() { p.sendARP(p.guestMAC, "10.88.0.77") }},
		"ARP with another MAC":         {"arp saddr ether 52:54:00:00:00:99", func() { p.sendARP("52:54:00:00:00:99", own) }},
		"an ARP probe for another":     {"arp saddr ip 0.0.0.0", func() { p.sendARPFor(p.guestMAC, "0.0.0.0", other) }},
		"an IPv6 probe for another":    {"icmpv6 type nd-neighbor-solicit ip6 saddr :: " + about("fd00:88::6"), func() { p.sendIPv6("::", unix.IPPROTO_ICMPV6, solicitation("fd00:88::6")) }},
		"a link-local fragment":        {"ip6 saddr " + mine + " ip6 nexthdr 44", func() { p.sendIPv6(mine, unix.IPPROTO_FRAGMENT, fragment) }},
		"one behind a header":          {"ip6 saddr " + mine + " ip6 nexthdr 60", func() { p.sendIPv6(mine, unix.IPPROTO_DSTOPTS, behind) }},
		"a VLAN tag":                   {"ether type 8021q", func() { p.sendARP(p.guestMAC, own, 0x81, 0, 0, 5) }},
		"an answer of a DHCP server":   {"udp dport 68", func() { p.try("sh", "-c", "echo x | busybox nc -u -w 1 "+other+" 68") }},
		"an answer of a DHCPv6 server": {"udp dport 546", func() { p.try("sh", "-c", "echo x | busybox nc -u -w 1 fd00:88::6 546") }},
	} {
		if heard("ether saddr "+p.guestMAC+" "+attempt.match, attempt.send) {
			t.Errorf("the network hears %s", name)
		}
	}
	// The pod's own stack has the guest's address too, and hears nothing.
	p.run(p.other, nil, "ip", "neigh", "replace", own, "lladdr", p.plan.Bridge.MAC, "dev", "eth0")
	if p.seen(p.pod, packets("tcp dport 9092"), func() { p.fail(p.other, own+":9092") }) {
		t.Error("packets come to the pod's own stack")
	}
	p.checkStandIn()
}

// sendIPv6 has the guest send a packet to all nodes, from any address, :: too, which the guest's kernel would replace.
func (p *pod) sendIPv6(from string, next byte, payload []byte) {
	p.t.Helper()
	source, all := netip.MustParseAddr(from).As16(), netip.MustParseAddr("ff02::1").As16()
	frame := append([]byte{0x33, 0x33, 0, 0, 0, 1}, parseMAC(p.t, p.guestMAC)...)
	frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(payload)), next, 255)
	p.sendFrame(append(append(append(frame, source[:]...), all[:]...), payload...))
}

// about returns the match of a neighbour's message about an address, which has the address behind its first eight bytes.
func about(target string) string {
	return fmt.Sprintf("@th,64,128 0x%x", netip.MustParseAddr(target).As16())
}

// solicitation asks who has an address.
func solicitation(target string) []byte {
	a := netip.MustParseAddr(target).As16()
	return append([]byte{icmpNeighborSolicitation, 0, 0, 0, 0, 0, 0, 0}, a[:]...)
}
