package netsetup

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// macvlanNetwork is a pod network of the real plugin macvlan, whose pods share a card of the node.
func macvlanNetwork() network {
	return network{prefix: 24, connect: func(p *pod, id string, netns ns.NetNS) {
		if id == "pod" {
			p.run(p.node, nil, "ip", "link", "add", "up0", "mtu", fmt.Sprint(p.mtu), "type", "veth", "peer", "name", "cable")
			p.run(p.node, nil, "ip", "link", "set", "up0", "up")
			p.inside(p.node, func() error { return configureLink("cable", "10.88.0.1/24", p.mtu) }) // the router, at the cable's other end
		}
		p.cni("ADD", "macvlan", id, netns)
	}, disconnect: func(p *pod, id string, netns ns.NetNS) { p.cni("DEL", "macvlan", id, netns) }}
}

// TestMasqueradeOnNetworks: a masqueraded guest reaches others, and they the guest, on every kind of pod network, and the plugin's
// DEL finds what it looks for.
func TestMasqueradeOnNetworks(t *testing.T) {
	kinds := networks()
	kinds["macvlan"] = macvlanNetwork()
	for name, n := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &pod{t: t, node: newNetNS(t), pod: newNetNS(t), other: newNetNS(t), guest: newNetNS(t), leases: t.TempDir(), mtu: podMTU, guestMAC: guestMAC}
			p.inside(p.node, func() error { return configureLink("lo", "", 65536) })
			p.inside(p.guest, func() error { return configureLink("lo", "", 65536) })
			n.connect(p, "pod", p.pod)
			n.connect(p, "other", p.other)
			plan := func() {
				var err error
				if p.facts, err = ReadFacts(p.pod, "eth0"); err == nil {
					p.plan, err = PlanMasquerade(p.facts, Masquerade{})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			plan()
			own, other := p.podAddress(), p.addressOf(p.other)
			p.serveTCP(p.other, ":8080")
			if told := p.start(); told["ip"] != guestIP || told["router"] != "10.0.2.1" || told["mtu"] != fmt.Sprint(podMTU) {
				t.Errorf("the guest was told %v", told)
			}
			p.serveTCP(p.guest, ":80")
			p.echoUDP(p.guest, ":53")
			conn := p.reach(p.other, own+":80", other)
			p.exchangeUDP(p.other, own+":53")
			p.reach(p.guest, other+":8080", own)
			p.run(p.guest, nil, "busybox", "ping", "-c", "1", "-W", "5", "-s", fmt.Sprint(podMTU-28), other)
			for range 3 {
				plan()
				if err := Apply(p.pod, p.plan); err != nil {
					t.Fatal(err)
				}
				echo(t, conn, 1<<16)
			}
			n.disconnect(p, "pod", p.pod)
			n.disconnect(p, "other", p.other)
			p.released()
		})
	}
}

// TestBridgeOnMacvlan: the guest is what the pod was where the pod shares a card, which delivers frames for the pod's MAC alone.
func TestBridgeOnMacvlan(t *testing.T) {
	n := macvlanNetwork()
	p := newBridged(t, n, Bridged{})
	own, other := p.podAddress(), p.addressOf(p.other)
	p.serveTCP(p.other, ":8080")
	if told := p.start(); told["ip"] != own || told["mask"] != fmt.Sprint(n.prefix) || told["mtu"] != fmt.Sprint(podMTU) {
		t.Errorf("the guest was told %v", told)
	}
	p.serveTCP(p.guest, ":80")
	p.reach(p.other, own+":80", other)
	p.reach(p.guest, other+":8080", own)
	p.run(p.guest, nil, "busybox", "ping", "-c", "1", "-W", "5", "-s", fmt.Sprint(podMTU-28), other)
	p.renew()
	n.disconnect(p, "pod", p.pod)
	n.disconnect(p, "other", p.other)
	p.released()
}

// frames returns all frames that a link of a namespace receives, from now until the returned function is called.
func (p *pod) frames(netns ns.NetNS, link string) func() [][]byte {
	p.t.Helper()
	var fd int
	p.inside(netns, func() (err error) {
		const all = unix.ETH_P_ALL
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all<<8&0xff00|all>>8)); err != nil {
			return err
		}
		l, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all<<8&0xff00 | all>>8, Ifindex: l.Index})
	})
	p.t.Cleanup(func() { unix.Close(fd) })
	return func() (out [][]byte) {
		frame := make([]byte, 1<<16)
		for {
			n, from, err := unix.Recvfrom(fd, frame, 0)
			if err != nil {
				return out
			}
			if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype != unix.PACKET_OUTGOING {
				out = append(out, slices.Clone(frame[:n]))
			}
		}
	}
}

// TestMasqueradedGuestIsNotHeard: nothing of what a masqueraded guest says to its link comes to the pod network: no ARP, no DHCP, no
// advertisement of a router or a neighbour, and no MAC but the pod's.
func TestMasqueradedGuestIsNotHeard(t *testing.T) {
	p := newPod(t, Masquerade{})
	p.start()
	p.serveTCP(p.other, ":8080")
	heard := p.frames(p.other, "eth0")
	says := func(match string, say func()) {
		t.Helper()
		said := func() {
			say()
			p.run(p.guest, nil, "busybox", "ping", "-c", "1", "-W", "5", "10.0.2.1") // comes after that
		}
		p.comes(p.pod, frames(match), said)
	}
	for _, address := range []string{guestIP, podIP, otherIP, "10.0.2.1"} {
		says("arp saddr ip "+address, func() { p.sendARP(guestMAC, address) })
	}
	mac := parseMAC(t, guestMAC)
	false66 := net.HardwareAddr{0x52, 0x54, 0, 0x66, 0x66, 0x66}
	says("ether saddr "+false66.String(), func() { p.guestSends(slices.Concat(false66, []byte{0x88, 0xb5}, make([]byte, 50))) })
	says("ether type 8021q", func() { p.sendARP(guestMAC, podIP, 0x81, 0, 0, 5) })
	for kind, message := range map[string][]byte{"nd-router-advert": {134, 0}, "nd-neighbor-advert": {136, 0}, "nd-neighbor-solicit": {135, 0}, "nd-router-solicit": {133, 0}} {
		body := append(message, make([]byte, 22)...)
		packet := slices.Concat([]byte{0x60, 0, 0, 0, 0, byte(len(body)), 58, 255, 0xfe, 0x80}, make([]byte, 13), []byte{2, 0xff, 2}, make([]byte, 13), []byte{1}, body)
		says("ip6 nexthdr icmpv6 icmpv6 type "+kind, func() { p.guestSends(slices.Concat(mac, []byte{0x86, 0xdd}, packet)) })
	}
	broadcast := func(from, to int) func() {
		return func() {
			var conn net.PacketConn
			p.inside(p.guest, func() error {
				f, err := listenUDP(guestLink, from)
				if err != nil {
					return err
				}
				defer f.Close()
				conn, err = net.FilePacketConn(f)
				return err
			})
			defer conn.Close()
			if _, err := conn.WriteTo(make([]byte, 300), &net.UDPAddr{IP: net.IPv4bcast, Port: to}); err != nil {
				t.Fatal(err)
			}
		}
	}
	says("udp dport 67", broadcast(dhcpClientPort, dhcpPort))
	says("udp dport 68", broadcast(dhcpPort, dhcpClientPort))

	p.reach(p.guest, otherIP+":8080", podIP) // comes after all of the above
	frames := heard()
	for _, f := range frames {
		switch source, kind := net.HardwareAddr(f[6:12]).String(), [2]byte(f[12:14]); {
		case source != p.facts.MAC:
			t.Errorf("heard a frame from %s: %x", source, f[:min(len(f), 64)])
		case kind == [2]byte{0x08, 0x06} && !net.IP(f[28:32]).Equal(net.ParseIP(podIP)):
			t.Errorf("heard ARP of %s", net.IP(f[28:32]))
		case kind == [2]byte{0x08, 0x00} && !net.IP(f[26:30]).Equal(net.ParseIP(podIP)):
			t.Errorf("heard a packet from %s", net.IP(f[26:30]))
		}
	}
	if len(frames) == 0 {
		t.Error("heard nothing, not even the connection: this test proves nothing")
	}
}

// TestMACSpoofCheck: on a node whose kernel has no filter for bridges in the pod, the plugin's macspoofchk holds the guest to its MAC,
// and without macspoofchk nothing does.
func TestMACSpoofCheck(t *testing.T) {
	for _, checks := range []bool{true, false} {
		t.Run(fmt.Sprint(checks), func(t *testing.T) {
			l := lans()["bridge"]
			l.config = map[string]any{"bridge": "lanbr", "macspoofchk": checks}
			p := newBeside(t, l, map[string]any{})
			p.plan.Tables[0].Chains[0].Type = "nat" // which no kernel has for bridges
			if err := Apply(p.pod, p.plan); !errors.Is(err, ErrUnfiltered) {
				t.Fatalf("got %v", err)
			}
			queues, err := OpenTap(p.pod, p.plan)
			if err != nil {
				t.Fatal(err)
			}
			p.connectGuest(queues)
			p.run(p.guest, nil, "ip", "addr", "add", "192.0.2.77/24", "dev", guestLink)
			p.serveTCP(p.other, ":8080")
			p.reach(p.guest, "192.0.2.1:8080", "192.0.2.77")
			heard := p.sources()
			mac := net.HardwareAddr{0x52, 0x54, 0, 0x66, 0x66, 0x66}
			p.guestSends(slices.Concat(mac, []byte{0x88, 0xb5}, make([]byte, 50)))
			p.reach(p.guest, "192.0.2.1:8080", "192.0.2.77") // comes after that
			if got := slices.Contains(heard(), mac.String()); got == checks {
				t.Errorf("a frame from another MAC is heard: %v", got)
			}
		})
	}
}
