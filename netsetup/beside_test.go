package netsetup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// besideLink is an interface as KubeVirt names it on a network beside the pod's own.
const besideLink = "pod7c0ffee1234"

func besideFacts() Facts {
	return Facts{Link: besideLink, Index: 3, MTU: 1500, MAC: guestMAC}
}

func TestPlanBesideGolden(t *testing.T) {
	addressed := besideFacts()
	addressed.MAC = "5a:11:22:33:44:55"
	addressed.Addresses = []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24")}
	addressed.Routes = routes("192.0.2.0/24", "198.51.100.0/24 via 192.0.2.1")
	macvlan := besideFacts()
	macvlan.Kind = kindMACVLAN
	onlyIPv6 := besideFacts() // the kernel has heard a router
	onlyIPv6.Addresses = []netip.Prefix{netip.MustParsePrefix("2001:db8::5054:ff:fe12:3456/64")}
	for name, facts := range map[string]Facts{"beside": besideFacts(), "beside-ipam": addressed, "beside-macvlan": macvlan, "beside-ipv6": onlyIPv6} {
		t.Run(name, func(t *testing.T) {
			plan, err := PlanBridge(facts, Bridged{MAC: guestMAC, Beside: true, Queues: 2})
			if err != nil {
				t.Fatal(err)
			}
			planGolden(t, name, plan)
			if served := name == "beside-ipam"; plan.Serves() != served || (len(GuestAddresses(facts)) > 0) != served {
				t.Errorf("serves: %t, addresses %v", plan.Serves(), GuestAddresses(facts))
			}
		})
	}
}

func TestPlanBesideRefuses(t *testing.T) {
	ipvlan := besideFacts()
	ipvlan.Kind = kindIPVLAN
	card := besideFacts()
	card.Kind = kindDevice
	long := besideFacts()
	long.Link += "5"
	tap0 := besideFacts()
	tap0.Link = "pod0"
	large := besideFacts()
	large.MTU = maxMTU + 1
	tunnel := besideFacts() // WireGuard, and whatever else has no Ethernet header
	tunnel.MAC = ""
	for _, facts := range []Facts{ipvlan, card, long, tap0, large, tunnel} {
		if _, err := PlanBridge(facts, Bridged{MAC: guestMAC, Beside: true}); err == nil || !strings.Contains(err.Error(), facts.Link) {
			t.Errorf("%s: %v", facts.Link, err)
		}
	}
}

// TestPlanBesideMTU: without IPAM the network's own server says how the guest is configured, and nothing of ours has to fit.
func TestPlanBesideMTU(t *testing.T) {
	for _, mtu := range []int{68, 1279, 60000, maxMTU} {
		facts := besideFacts()
		facts.MTU = mtu
		if _, err := PlanBridge(facts, Bridged{MAC: guestMAC, Beside: true}); err != nil {
			t.Errorf("MTU %d: %v", mtu, err)
		}
	}
}

// TestBesideHostDevice: a link that the plugin moves from the node into the pod, and back, stays as it is,
// whatever its kind.
func TestBesideHostDevice(t *testing.T) {
	p := newPod(t, Masquerade{})
	p.node = newNetNS(t)
	p.run(p.node, nil, "ip", "link", "add", "card0", "type", "veth", "peer", "name", "cable")
	lan{kind: "host-device", config: map[string]any{"device": "card0"}}.attach(p, map[string]any{})
	facts, err := ReadFacts(p.pod, besideLink)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := PlanBridge(facts, Bridged{MAC: guestMAC, Beside: true}); err == nil || !strings.Contains(err.Error(), "is a network card of the node") {
		t.Errorf("facts %+v are planned: %v", facts, err)
	}
}

// lan is a network beside the pod's, and a machine on it, which is "other". attach calls the real
// plugin.
type lan struct {
	kind string
	// config is the plugin's.
	config map[string]any
	// prepare makes what the plugin wants in the node.
	prepare func(p *pod)
}

func lans() map[string]lan {
	cable := func(p *pod, link string) {
		p.run(p.node, nil, "ip", "link", "add", link, "type", "veth", "peer", "name", "xlan")
		p.moveLink(p.node, "xlan", p.other, "lan0")
		p.run(p.node, nil, "ip", "link", "set", link, "up")
		p.inside(p.other, func() error { return configureLink("lan0", "192.0.2.1/24", 1500) })
	}
	return map[string]lan{
		"bridge": {"bridge", map[string]any{"bridge": "lanbr", "macspoofchk": true}, func(p *pod) {
			cable(p, "port0")
			p.run(p.node, nil, "ip", "link", "add", "lanbr", "type", "bridge")
			p.run(p.node, nil, "ip", "link", "set", "lanbr", "up")
			p.run(p.node, nil, "ip", "link", "set", "port0", "master", "lanbr")
		}},
		"macvlan": {"macvlan", map[string]any{"master": "up0", "mode": "bridge"}, func(p *pod) { cable(p, "up0") }},
	}
}

// attach has the plugin give the pod an interface on the network.
func (l lan) attach(p *pod, ipam map[string]any) {
	p.t.Helper()
	config := map[string]any{"cniVersion": "1.0.0", "name": "lan", "type": l.kind, "ipam": ipam}
	for key, value := range l.config {
		config[key] = value
	}
	text, err := json.Marshal(config)
	if err != nil {
		p.t.Fatal(err)
	}
	const plugins = "/usr/lib/cni"
	cmd := exec.Command(plugins + "/" + l.kind)
	target := os.NewFile(dup(p.t, int(p.pod.Fd())), "netns")
	defer target.Close()
	cmd.ExtraFiles = []*os.File{target}
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=pod", "CNI_NETNS=/proc/self/fd/3", "CNI_IFNAME="+besideLink,
		"CNI_PATH="+plugins, "CNI_ARGS=IgnoreUnknown=1;MAC="+guestMAC)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), &out, &out
	p.inside(p.node, cmd.Start)
	if err := cmd.Wait(); err != nil {
		p.t.Fatalf("CNI ADD with %s: %v\n%s", l.kind, err, out.String())
	}
}

func newBeside(t *testing.T, l lan, ipam map[string]any) *pod {
	t.Helper()
	p := newPod(t, Masquerade{})
	p.node, p.other = newNetNS(t), newNetNS(t)
	p.inside(p.node, func() error { return configureLink("lo", "", 65536) })
	l.prepare(p)
	l.attach(p, ipam)
	p.replanBeside()
	return p
}

func (p *pod) replanBeside() {
	p.t.Helper()
	var err error
	if p.facts, err = ReadFacts(p.pod, besideLink); err != nil {
		p.t.Fatal(err)
	}
	if p.plan, err = PlanBridge(p.facts, Bridged{MAC: p.guestMAC, Beside: true}); err != nil {
		p.t.Fatal(err)
	}
}

// sources returns the MACs, but for the node's own, from which frames reach the machine on the
// network, and those that ARP names as the sender's, from now until the returned function is called.
func (p *pod) sources() func() []string {
	p.t.Helper()
	var fd int
	p.inside(p.other, func() (err error) {
		const all = unix.ETH_P_ALL
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all<<8&0xff00|all>>8)); err != nil {
			return err
		}
		link, err := net.InterfaceByName("lan0")
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all<<8&0xff00 | all>>8, Ifindex: link.Index})
	})
	p.t.Cleanup(func() { unix.Close(fd) })
	var own []string
	p.inside(p.node, func() error {
		links, err := net.Interfaces()
		for _, link := range links {
			own = append(own, link.HardwareAddr.String())
		}
		return err
	})
	return func() (out []string) {
		frame := make([]byte, 1<<16)
		for {
			n, from, err := unix.Recvfrom(fd, frame, 0)
			if err != nil {
				return out
			}
			if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING || n < 12 {
				continue
			}
			macs := []net.HardwareAddr{frame[6:12]}
			if n >= 28 && frame[12] == 0x08 && frame[13] == 0x06 { // the kernel has taken a tag out
				macs = append(macs, frame[22:28])
			}
			for _, m := range macs {
				if mac := m.String(); !slices.Contains(out, mac) && !slices.Contains(own, mac) {
					out = append(out, mac)
				}
			}
		}
	}
}

// TestBesideWithoutIPAM: on a network without IPAM the guest has what the network's own DHCP server gives it,
// is reached by its neighbours, and nothing but the guest is heard there.
func TestBesideWithoutIPAM(t *testing.T) {
	for name, l := range lans() {
		t.Run(name, func(t *testing.T) {
			p := newBeside(t, l, map[string]any{})
			if len(p.facts.Addresses) > 0 || p.facts.MAC != guestMAC || p.plan.Serves() {
				t.Fatalf("facts %+v", p.facts)
			}
			if err := Apply(p.pod, p.plan); err != nil {
				t.Fatal(err)
			}
			heard := p.sources() // the pod's stack has spoken while it had the interface
			queues, err := OpenTap(p.pod, p.plan)
			if err != nil {
				t.Fatal(err)
			}
			p.connectGuest(queues)
			p.lanDHCP()
			told := p.runDHCPClient()
			if told["ip"] != "192.0.2.77" || told["serverid"] != "192.0.2.1" {
				t.Errorf("the guest was told %v", told)
			}
			p.serveTCP(p.guest, ":80")
			p.serveTCP(p.other, ":8080")
			conn := p.reach(p.other, "192.0.2.77:80", "192.0.2.1")
			p.reach(p.guest, "192.0.2.1:8080", "192.0.2.77")
			for range 3 {
				before := p.facts
				p.replanBeside()
				before.Index = p.facts.Index // the stand-in's is another
				if diff := cmp.Diff(before, p.facts, equality); diff != "" {
					t.Errorf("facts, -before +after:\n%s", diff)
				}
				if err := Apply(p.pod, p.plan); err != nil {
					t.Fatal(err)
				}
				echo(t, conn, 1<<16)
			}
			if got := heard(); !slices.Equal(got, []string{guestMAC}) {
				t.Errorf("heard %v, want the guest's %s only", got, guestMAC)
			}
			if got := p.run(p.pod, nil, "ip", "-o", "addr", "show", "dev", p.plan.Bridge.Name); got != "" {
				t.Errorf("the bridge has addresses: %s", got)
			}
			p.spoofsNothing(heard)
		})
	}
}

// TestBesideAfterCrash stops after every step, beside a pod network whose guest is masqueraded, and starts
// anew with nothing but what the kernel holds.
func TestBesideAfterCrash(t *testing.T) {
	ipam := map[string]any{"type": "static", "addresses": []any{map[string]string{"address": "192.0.2.9/24"}}}
	for name, l := range lans() {
		for given, ipam := range map[string]map[string]any{"no IPAM": {}, "IPAM": ipam} {
			t.Run(name+", "+given, func(t *testing.T) {
				for stop, s := range newBeside(t, l, ipam).plan.steps() {
					t.Run(s.name, func(t *testing.T) { crashBeside(t, l, ipam, stop) })
				}
			})
		}
	}
}

func crashBeside(t *testing.T, l lan, ipam map[string]any, stop int) {
	p := newBeside(t, l, ipam)
	first := p.plan
	if err := replaceTables(p.pod, p.plan.Tables); err != nil {
		t.Fatal(err)
	}
	p.inside(p.pod, func() error {
		for _, s := range p.plan.steps()[:stop+1] {
			if err := s.do(); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		return nil
	})
	p.replanBeside()
	if diff := cmp.Diff(first, p.plan, equality); diff != "" {
		t.Errorf("plan, -before +after the crash:\n%s", diff)
	}
	if err := Apply(p.pod, p.plan); err != nil {
		t.Fatal(err)
	}
	queues, err := OpenTap(p.pod, p.plan)
	if err != nil {
		t.Fatal(err)
	}
	p.connectGuest(queues)
	p.run(p.guest, nil, "ip", "addr", "add", "192.0.2.9/24", "dev", guestLink)
	p.serveTCP(p.guest, ":80")
	p.reach(p.other, "192.0.2.9:80", "192.0.2.1")
}

// lanDHCP is the network's own DHCP server.
func (p *pod) lanDHCP() {
	p.t.Helper()
	config := p.t.TempDir() + "/udhcpd.conf"
	text := fmt.Sprintf("start 192.0.2.77\nend 192.0.2.77\ninterface lan0\nlease_file %s.leases\npidfile %s.pid\noption subnet 255.255.255.0\noption router 192.0.2.1\noption mtu 1500\n", config, config)
	if err := errors.Join(os.WriteFile(config, []byte(text), 0o600), os.WriteFile(config+".leases", nil, 0o600)); err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command("busybox", "udhcpd", "-f", config)
	p.inside(p.other, cmd.Start)
	p.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
}

// spoofsNothing has the guest send under another MAC, in the frame and in ARP, also behind a VLAN tag.
func (p *pod) spoofsNothing(heard func() []string) {
	p.t.Helper()
	heard()
	for _, tag := range [][]byte{nil, {0x81, 0, 0, 5}, {0x88, 0xa8, 0, 5}} {
		p.sendARP("52:54:00:66:66:66", "192.0.2.1", tag...)
	}
	p.guestSends(slices.Concat(net.HardwareAddr{0x52, 0x54, 0, 0x66, 0x66, 0x66}, []byte{0x88, 0xb5}, make([]byte, 50)))
	// The next message of the guest arrives after those above.
	p.reach(p.guest, "192.0.2.1:8080", "192.0.2.77")
	if got := heard(); !slices.Equal(got, []string{guestMAC}) {
		p.t.Errorf("heard %v after the guest sent under another MAC", got)
	}
}

// guestSends has the guest broadcast a frame, which is given from its source's MAC on.
func (p *pod) guestSends(frame []byte) {
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
		return unix.Sendto(fd, slices.Concat([]byte{255, 255, 255, 255, 255, 255}, frame), 0, &unix.SockaddrLinklayer{Ifindex: link.Index})
	})
}

// TestBesideWithIPAMKeepsTheAddress: with IPAM the guest is told its address by the pod, and keeps to it.
func TestBesideWithIPAMKeepsTheAddress(t *testing.T) {
	for name, l := range lans() {
		t.Run(name, func(t *testing.T) {
			p := newBeside(t, l, map[string]any{"type": "static", "addresses": []any{map[string]string{"address": "192.0.2.9/24"}},
				"routes": []any{map[string]string{"dst": "198.51.100.0/24", "gw": "192.0.2.1"}}})
			told := p.start()
			if told["ip"] != "192.0.2.9" || told["mask"] != "24" || told["router"] != "" || !strings.Contains(told["staticroutes"], "198.51.100.0/24 192.0.2.1") {
				t.Errorf("the guest was told %v", told)
			}
			// As QEMU announces the guest after a migration.
			heard, mac := p.sources(), net.HardwareAddr{0x52, 0x54, 0, 0x12, 0x34, 0x56}
			p.guestSends(slices.Concat(mac, []byte{0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3}, mac, make([]byte, 4), mac, make([]byte, 4)))
			var got []string
			testkit.Until(t, "a word of a guest that announces itself", func() bool { got = heard(); return len(got) > 0 })
			if !slices.Equal(got, []string{guestMAC}) {
				t.Errorf("heard %v of a guest that announces itself", got)
			}
			p.serveTCP(p.guest, ":80")
			p.reach(p.other, "192.0.2.9:80", "192.0.2.1")
			p.run(p.guest, nil, "ip", "addr", "add", "192.0.2.10/24", "dev", guestLink)
			p.serveTCP(p.guest, "192.0.2.10:81")
			p.fail(p.other, "192.0.2.10:81")
		})
	}
}

// TestBesideReachesPodNetwork: a guest with an address of IPAM sends nothing to the pod network by its
// second card. The pod of a guest with masquerade forwards.
func TestBesideReachesPodNetwork(t *testing.T) {
	p := newBeside(t, lans()["bridge"], map[string]any{"type": "static", "addresses": []any{map[string]string{"address": "192.0.2.9/24"}}})
	masquerade, err := PlanMasquerade(p.podFacts(), Masquerade{})
	if err != nil {
		t.Fatal(err)
	}
	if err := Apply(p.pod, masquerade); err != nil {
		t.Fatal(err)
	}
	p.start()
	p.run(p.guest, nil, "ip", "route", "add", "198.51.100.0/24", "via", "192.0.2.1")
	p.run(p.guest, nil, "ip", "neigh", "replace", "192.0.2.1", "lladdr", p.plan.Bridge.MAC, "dev", guestLink)
	if p.seen(p.pod, traffic{"ip", "postrouting", "ip daddr 198.51.100.1"}, func() {
		conn, err := p.dialUDP(p.guest, "198.51.100.1:67")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range 3 {
			if _, err := conn.Write([]byte("to another network")); err != nil {
				t.Fatal(err)
			}
			p.run(p.guest, nil, "busybox", "arping", "-q", "-c", "1", "-w", "1", "-I", guestLink, "192.0.2.1") // it comes after
		}
	}) {
		t.Error("a datagram of the second card's leaves the pod by the pod network")
	}
	p.renew()
}

// podFacts are those of the pod's own interface.
func (p *pod) podFacts() Facts {
	p.t.Helper()
	facts, err := ReadFacts(p.pod, "eth0")
	if err != nil {
		p.t.Fatal(err)
	}
	return facts
}

func (p *pod) dialUDP(netns ns.NetNS, address string) (conn net.Conn, err error) {
	err = netns.Do(func(ns.NetNS) error {
		conn, err = net.Dial("udp4", address)
		return err
	})
	return conn, err
}

// TestTwoNetworksBesideWithTheSameRoutes: two networks with the same routes do not share what is saved of them, and the pod
// network of the same guest stays as it is.
func TestTwoNetworksBesideWithTheSameRoutes(t *testing.T) {
	p := newPod(t, Masquerade{})
	links := []string{"eth0", besideLink, "pod00000000001"}
	var plans []*Plan
	for i, link := range links {
		if i > 0 {
			p.inside(p.pod, func() error {
				veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "peer"}
				veth.Name = link
				if err := netlink.LinkAdd(veth); err != nil {
					return err
				}
				if err := configureLink("peer", "", 1500); err != nil {
					return err
				}
				if err := configureLink(link, fmt.Sprintf("192.0.%d.9/24", i), 1500); err != nil {
					return err
				}
				peer, err := netlink.LinkByName("peer")
				if err != nil {
					return err
				}
				return netlink.LinkSetName(peer, fmt.Sprintf("peer%d", i))
			})
			p.run(p.pod, nil, "ip", "route", "add", "198.51.100.0/24", "dev", link, "metric", fmt.Sprint(i))
		}
		plan := p.plan
		if i > 0 {
			facts, err := ReadFacts(p.pod, link)
			if err != nil {
				t.Fatal(err)
			}
			if plan, err = PlanBridge(facts, Bridged{MAC: guestMAC, Beside: true}); err != nil {
				t.Fatal(err)
			}
		}
		plans = append(plans, plan)
	}
	for range 2 {
		var before []Facts
		for i, plan := range plans {
			facts, err := ReadFacts(p.pod, links[i])
			if err != nil {
				t.Fatal(err)
			}
			before = append(before, facts)
			if err := Apply(p.pod, plan); err != nil {
				t.Fatal(err)
			}
		}
		for i, link := range links {
			after, err := ReadFacts(p.pod, link)
			if err != nil {
				t.Fatal(err)
			}
			after.Index = before[i].Index // a stand-in's is another
			if diff := cmp.Diff(before[i], after, equality); diff != "" {
				t.Errorf("%s, -before +after:\n%s", link, diff)
			}
		}
	}
	for _, plan := range plans {
		queues, err := OpenTap(p.pod, plan)
		if err != nil {
			t.Fatal(err)
		}
		CloseAll(queues)
	}
	tables := p.run(p.pod, nil, "nft", "list", "tables")
	for _, want := range []string{"ip kubeqemu\n", "bridge kubeqemu_7c0ffee1234", "bridge kubeqemu_00000000001"} {
		if !strings.Contains(tables, want) {
			t.Errorf("no table %q among\n%s", want, tables)
		}
	}
}

// TestMissingInterfaceIsTold: a pod without the interface is told from one that cannot be read.
func TestMissingInterfaceIsTold(t *testing.T) {
	p := newPod(t, Masquerade{})
	if _, err := ReadFacts(p.pod, besideLink); !errors.Is(err, ErrNoLink) {
		t.Errorf("got %v", err)
	}
	closed, err := ns.TempNetNS()
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if _, err := ReadFacts(closed, besideLink); err == nil || errors.Is(err, ErrNoLink) {
		t.Errorf("of a closed namespace: %v", err)
	}
}
