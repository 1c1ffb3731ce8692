package netsetup

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// floodFrames has the guest send many frames by one socket, each to everybody.
func (p *pod) floodFrames(count int, frame func(i int) []byte) {
	p.t.Helper()
	p.inside(p.guest, func() error {
		link, err := net.InterfaceByName(guestLink)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for i := range count {
			whole := slices.Concat([]byte{255, 255, 255, 255, 255, 255}, frame(i))
			if err := unix.Sendto(fd, whole, 0, &unix.SockaddrLinklayer{Ifindex: link.Index}); err != nil {
				return err
			}
		}
		return nil
	})
}

// madeUpMAC is another MAC for each number.
func madeUpMAC(i int) net.HardwareAddr {
	return binary.BigEndian.AppendUint32([]byte{0x02, 0x66}, uint32(i))
}

// asksFor is ARP's question for an address, without the frame's first address.
func asksFor(mac net.HardwareAddr, sender, target netip.Addr) []byte {
	return slices.Concat(mac, []byte{0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1}, mac, sender.AsSlice(), make([]byte, 6), target.AsSlice())
}

func (p *pod) lines(netns ns.NetNS, name string, args ...string) int {
	p.t.Helper()
	return strings.Count(p.run(netns, nil, name, args...), "\n")
}

// TestGuestFillsNoNeighbourTableByARP: whose address the guest says that it has, in ARP, does not fill the table of neighbours, which all
// pods of a node share.
func TestGuestFillsNoNeighbourTableByARP(t *testing.T) {
	p := newPod(t, Masquerade{Network: netip.MustParsePrefix("10.0.0.0/16")})
	p.start()
	gateway, guest := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	question := fmt.Sprintf("ether saddr %s arp saddr ip 10.0.1.0/24", madeUpMAC(0))
	if !p.seen(p.pod, p.plan.Bridge.Name, question, func() {
		p.floodFrames(1000, func(i int) []byte {
			return asksFor(madeUpMAC(i%100), netip.AddrFrom4([4]byte{10, 0, byte(1 + i/250), byte(1 + i%250)}), gateway)
		})
		p.run(p.guest, nil, "busybox", "ping", "-c", "1", "-W", "5", gateway.String()) // comes after that
	}) {
		t.Error("the questions do not come to the pod: this test proves nothing")
	}
	found := p.run(p.pod, nil, "ip", "-4", "neigh", "show", "dev", p.plan.Bridge.Name, "nud", "all")
	for line := range strings.Lines(found) {
		// A broadcast makes an entry that holds no neighbour.
		if !strings.HasPrefix(line, guest.String()+" ") && !strings.Contains(line, "NOARP") {
			t.Errorf("the pod remembers %s", line)
		}
	}
	if !strings.Contains(found, guest.String()+" ") {
		t.Errorf("the pod does not remember its guest: %q", found)
	}
	// A guest that looks whether its address is taken hears that its gateway's is, and that its own is not.
	p.run(p.guest, nil, "busybox", "arping", "-D", "-c", "1", "-w", "2", "-I", guestLink, guest.String())
	p.serveTCP(p.other, ":8080")
	p.reach(p.guest, otherIP+":8080", podIP)
}

// TestGuestFillsNoForwardingTable: a guest that sends from MACs that it makes up does not make the pod's bridge remember them.
func TestGuestFillsNoForwardingTable(t *testing.T) {
	for name, setUp := range map[string]func(t *testing.T) *pod{
		"masquerade": func(t *testing.T) *pod { return newPod(t, Masquerade{}) },
		"bridge":     func(t *testing.T) *pod { return newBridged(t, networks()["ptp"], Bridged{}) },
	} {
		t.Run(name, func(t *testing.T) {
			p := setUp(t)
			p.start()
			entries := func() int { return p.lines(p.pod, "bridge", "fdb", "show", "br", p.plan.Bridge.Name) }
			before := entries()
			if !p.seen(p.pod, p.plan.Bridge.Name, "ether saddr "+madeUpMAC(0).String(), func() {
				p.floodFrames(2000, func(i int) []byte { return slices.Concat(madeUpMAC(i), []byte{0x88, 0xb5}, make([]byte, 46)) })
				p.run(p.guest, nil, "busybox", "ping", "-c", "1", "-W", "5", p.addressOf(p.other)) // comes after that
			}) {
				t.Error("the frames do not come to the pod: this test proves nothing")
			}
			if n := entries() - before; n > 1 { // the guest's own
				t.Errorf("the bridge remembers %d MACs more", n)
			}
		})
	}
}
