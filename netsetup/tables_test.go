package netsetup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

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
// pods of a node share. One address a second goes in.
func TestGuestFillsNoNeighbourTableByARP(t *testing.T) {
	p := newPod(t, Masquerade{Network: netip.MustParsePrefix("10.0.0.0/16")})
	p.start()
	gateway, guest := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	began := time.Now()
	question := fmt.Sprintf("ether saddr %s arp saddr ip 10.0.1.0/24", madeUpMAC(0))
	p.comes(p.pod, frames(question), func() {
		p.floodFrames(1000, func(i int) []byte {
			return asksFor(madeUpMAC(i%100), netip.AddrFrom4([4]byte{10, 0, byte(1 + i/250), byte(1 + i%250)}), gateway)
		})
		p.run(p.guest, nil, "busybox", "ping", "-c", "1", "-W", "5", gateway.String()) // comes after that
	})
	found := p.run(p.pod, nil, "ip", "-4", "neigh", "show", "dev", p.plan.Bridge.Name, "nud", "all")
	foreign := 0
	for line := range strings.Lines(found) {
		// A broadcast makes an entry that holds no neighbour.
		if !strings.HasPrefix(line, guest.String()+" ") && !strings.Contains(line, "NOARP") {
			foreign++
		}
	}
	if most := foreignRate * (2 + int(time.Since(began).Seconds())); foreign > most || most > 500 {
		t.Errorf("the pod remembers %d neighbours of 1000, want at most %d:\n%s", foreign, most, found)
	}
	if !strings.Contains(found, guest.String()+" ") {
		t.Errorf("the pod does not remember its guest: %q", found)
	}
	// A guest that looks whether its address is taken hears that its gateway's is, and that its own is not.
	p.run(p.guest, nil, "busybox", "arping", "-D", "-c", "1", "-w", "2", "-I", guestLink, guest.String())
	p.serveTCP(p.other, ":8080")
	p.reach(p.guest, otherIP+":8080", podIP)
}

// TestGuestWithTwoCardsFindsItsGateway: a guest that answers by the wrong card asks for its gateway in the name of its other card's address, and
// gets an answer: else what the guest rightly sends would wait, too.
func TestGuestWithTwoCardsFindsItsGateway(t *testing.T) {
	p := newPod(t, Masquerade{})
	p.start()
	p.run(p.guest, nil, "ip", "address", "add", "192.168.99.1/32", "dev", "lo")
	p.run(p.guest, nil, "ip", "neigh", "flush", "dev", guestLink)
	gateway := p.plan.Router.String()
	asks := "arp operation request arp saddr ip 192.168.99.1 arp daddr ip " + gateway
	p.comes(p.pod, frames(asks), func() {
		// The packets themselves are dropped: they are not from the guest's address.
		p.run(p.guest, nil, "sh", "-c", "busybox ping -c 3 -W 1 -I 192.168.99.1 "+gateway+" || true")
	})
	if found := p.run(p.guest, nil, "ip", "neigh", "show", gateway, "dev", guestLink); !strings.Contains(found, "lladdr "+p.plan.Bridge.MAC) {
		t.Errorf("the guest has not found its gateway: %q", found)
	}
}

// TestWithoutNFTablesForARP asks the kernel for a type of chain that it has not for ARP, which is its answer to any where it is built without
// nftables for ARP. All other tables are there.
func TestWithoutNFTablesForARP(t *testing.T) {
	p := newPod(t, Masquerade{})
	for i := range p.plan.Tables {
		if p.plan.Tables[i].Family == "arp" {
			p.plan.Tables[i].Chains[0].Type = "nat"
			slices.Reverse(p.plan.Tables) // it comes first
			break
		}
	}
	if err := Apply(p.pod, p.plan); !Wired(err) || !errors.Is(err, ErrManyNeighbours) || errors.Is(err, ErrUnfiltered) {
		t.Fatalf("got %v", err)
	}
	if tables := p.run(p.pod, nil, "nft", "list", "tables"); !strings.Contains(tables, "table ip "+TableName) || strings.Contains(tables, "table arp") {
		t.Errorf("tables %q", tables)
	}
	p.plan.Bridge.MAC = "none"
	if err := Apply(p.pod, p.plan); err == nil || Wired(err) {
		t.Fatalf("got %v", err)
	}
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
			p.comes(p.pod, frames("ether saddr "+madeUpMAC(0).String()), func() {
				p.floodFrames(2000, func(i int) []byte { return slices.Concat(madeUpMAC(i), []byte{0x88, 0xb5}, make([]byte, 46)) })
				p.run(p.guest, nil, "busybox", "ping", "-c", "1", "-W", "5", p.addressOf(p.other)) // comes after that
			})
			if n := entries() - before; n > 1 { // the guest's own
				t.Errorf("the bridge remembers %d MACs more", n)
			}
		})
	}
}
