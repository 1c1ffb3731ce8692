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
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// network is a kind of pod network. connect gives a namespace an eth0 on it, as pod
// id; disconnect is what happens when that pod is deleted.
type network struct {
	connect    func(p *pod, id string, netns ns.NetNS)
	disconnect func(p *pod, id string, netns ns.NetNS)
	prefix     int // of the guest's address
}

// networks are the kinds of pod networks: two real CNI plugins, and Calico's way.
func networks() map[string]network {
	plugin := func(kind string) network {
		call := func(command string) func(*pod, string, ns.NetNS) {
			return func(p *pod, id string, netns ns.NetNS) { p.cni(command, kind, id, netns) }
		}
		return network{connect: call("ADD"), disconnect: call("DEL")}
	}
	ptp, bridge := plugin("ptp"), plugin("bridge")
	ptp.prefix, bridge.prefix = 32, 24
	calico := network{connect: (*pod).calico, disconnect: func(*pod, string, ns.NetNS) {}, prefix: 32}
	return map[string]network{"ptp": ptp, "bridge": bridge, "calico": calico}
}

// cni calls a CNI plugin in the node's namespace, as a container runtime does.
func (p *pod) cni(command, kind, id string, netns ns.NetNS) {
	p.t.Helper()
	config, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "pods", "type": kind, "mtu": p.mtu,
		"bridge": "cni0", "isGateway": true, "hairpinMode": true, "master": "up0", "mode": "bridge",
		"ipam": map[string]any{"type": "host-local", "dataDir": p.leases, "routes": []any{map[string]string{"dst": "0.0.0.0/0"}},
			"ranges": []any{[]any{map[string]string{"subnet": "10.88.0.0/24"}}}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	const plugins = "/usr/lib/cni"
	cmd := exec.Command(plugins + "/" + kind)
	target := os.NewFile(dup(p.t, int(netns.Fd())), "netns")
	defer target.Close()
	cmd.ExtraFiles = []*os.File{target}
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+id, "CNI_NETNS=/proc/self/fd/3", "CNI_IFNAME=eth0", "CNI_PATH="+plugins)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(config), &out, &out
	p.inside(p.node, cmd.Start)
	if err := cmd.Wait(); err != nil {
		p.t.Fatalf("CNI %s with %s: %v\n%s", command, kind, err, out.String())
	}
}

// released wants all addresses back with the CNI plugins.
func (p *pod) released() {
	p.t.Helper()
	left, err := filepath.Glob(p.leases + "/pods/*.*.*.*")
	if err != nil || len(left) > 0 {
		p.t.Errorf("addresses are still taken: %v, %v", left, err)
	}
}

// calico makes a link as Calico does: an address for itself alone, a gateway that
// exists nowhere, and a node that answers for it.
func (p *pod) calico(id string, netns ns.NetNS) {
	p.t.Helper()
	address := map[string]string{"pod": "192.168.7.9", "other": "192.168.7.10"}[id]
	if id == "pod" { // the node's own network; it answers for an address that it has a route to
		p.run(p.node, nil, "ip", "link", "add", "up0", "type", "bridge")
		p.inside(p.node, func() error { return configureLink("up0", "10.1.1.1/24", podMTU) })
		p.run(p.node, nil, "ip", "route", "add", "default", "via", "10.1.1.254")
	}
	p.run(p.node, nil, "ip", "link", "add", "cali-"+id, "mtu", fmt.Sprint(p.mtu), "type", "veth", "peer", "name", "x"+id)
	p.moveLink(p.node, "x"+id, netns, "eth0")
	p.inside(netns, func() error { return configureLink("eth0", address+"/32", p.mtu) })
	p.run(netns, nil, "ip", "route", "add", "169.254.1.1", "dev", "eth0", "scope", "link")
	p.run(netns, nil, "ip", "route", "add", "default", "via", "169.254.1.1", "dev", "eth0")
	p.inside(p.node, func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/cali-"+id+"/proxy_arp", []byte("1"), 0); err != nil {
			return err
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/neigh/cali-"+id+"/proxy_delay", []byte("0"), 0); err != nil {
			return err
		}
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	})
	p.run(p.node, nil, "ip", "link", "set", "cali-"+id, "up")
	p.run(p.node, nil, "ip", "route", "add", address, "dev", "cali-"+id)
}

func newBridged(t *testing.T, n network, b Bridged) *pod {
	t.Helper()
	return newBridgedOfMTU(t, n, b, podMTU)
}

func newBridgedOfMTU(t *testing.T, n network, b Bridged, mtu int) *pod {
	t.Helper()
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	p := &pod{t: t, node: newNetNS(t), pod: newNetNS(t), other: newNetNS(t), guest: newNetNS(t), leases: t.TempDir(), mtu: mtu}
	p.inside(p.node, func() error { return configureLink("lo", "", 65536) })
	p.inside(p.guest, func() error { return configureLink("lo", "", 65536) })
	// The worst that a node may have set for its pods.
	p.inside(p.pod, func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("1"), 0) })
	n.connect(p, "pod", p.pod)
	n.connect(p, "other", p.other)
	p.replan(b)
	if p.guestMAC = b.MAC; b.MAC == "" {
		p.guestMAC = p.facts.MAC
	}
	return p
}

// replan plans from what is there.
func (p *pod) replan(b Bridged) {
	p.t.Helper()
	var err error
	if p.facts, err = ReadFacts(p.pod, "eth0"); err != nil {
		p.t.Fatal(err)
	}
	if p.plan, err = PlanBridge(p.facts, b); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pod) podAddress() string { return p.facts.Addresses[0].Addr().String() }

func (p *pod) addressOf(netns ns.NetNS) (address string) {
	p.t.Helper()
	p.inside(netns, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err == nil {
			address = addrs[0].IP.String()
		}
		return err
	})
	return address
}

// TestBridge: the guest is what the pod was, on every kind of network.
func TestBridge(t *testing.T) {
	for name, n := range networks() {
		t.Run(name, func(t *testing.T) {
			p := newBridged(t, n, Bridged{})
			own, other := p.podAddress(), p.addressOf(p.other)
			p.serveTCP(p.other, ":8080")
			told := p.start()
			for name, want := range map[string]string{
				"ip": own, "mask": fmt.Sprint(n.prefix), "serverid": "169.254.75.10", "router": p.plan.Router.String(),
				"dns": "10.96.0.10", "mtu": "1450", "hostname": "testvm", "domain": "default.svc.cluster.local",
			} {
				if told[name] != want {
					t.Errorf("%s is %q, want %q", name, told[name], want)
				}
			}
			p.serveTCP(p.guest, ":80")
			p.echoUDP(p.guest, ":53")
			p.reach(p.other, own+":80", other)
			p.exchangeUDP(p.other, own+":53")
			p.reach(p.guest, other+":8080", own)
			// The node, as the kubelet's probes do.
			conn, _, err := p.dial(p.node, own+":80")
			if err != nil {
				t.Fatalf("reach the guest from the node: %v", err)
			}
			p.run(p.guest, nil, "busybox", "ping", "-c", "1", "-W", "5", "-s", fmt.Sprint(podMTU-28), other)
			p.checkStandIn()
			p.renew()
			p.probesInPeace()

			before := p.bridgedState()
			for range 3 {
				p.replan(Bridged{})
				if err := Apply(p.pod, p.plan); err != nil {
					t.Fatal(err)
				}
				echo(t, conn, 1<<16)
			}
			if diff := cmp.Diff(before, p.bridgedState()); diff != "" {
				t.Errorf("-first +again:\n%s", diff)
			}
			n.disconnect(p, "pod", p.pod)
			n.disconnect(p, "other", p.other)
			p.released()
		})
	}
}

// checkStandIn wants an eth0 as the CNI plugin left it, but for being down.
func (p *pod) checkStandIn() {
	p.t.Helper()
	p.inside(p.pod, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		nic, err := netlink.LinkByName("eth0-nic")
		if err != nil {
			return err
		}
		a := link.Attrs()
		if a.HardwareAddr.String() != p.facts.MAC || a.MTU != p.facts.MTU || a.Flags&net.FlagUp != 0 || nic.Type() != "veth" ||
			nic.Attrs().HardwareAddr.String() == p.guestMAC {
			p.t.Errorf("stand-in %+v, interface %+v", a, nic.Attrs())
		}
		addrs, err := netlink.AddrList(nic, netlink.FAMILY_ALL)
		if len(addrs) > 0 {
			p.t.Errorf("eth0-nic has addresses %v", addrs)
		}
		return err
	})
	if got := p.addressOf(p.pod); got != p.podAddress() {
		p.t.Errorf("stand-in has %s", got)
	}
	// The pod's own processes have no network, and know at once.
	if _, _, err := p.dial(p.pod, "192.0.2.1:80"); err == nil || !strings.Contains(err.Error(), "unreachable") {
		p.t.Errorf("the pod's own stack: %v", err)
	}
}

// renew has the guest ask for its lease as clients do at half of its time, and
// later when the server did not answer.
func (p *pod) renew() {
	p.t.Helper()
	for _, to := range []string{p.plan.Bridge.Addresses[0].Addr().String(), "255.255.255.255"} {
		if kind := p.ask(to, p.plan.Guest[0].Addr().String()); kind != dhcpv4.MessageTypeAck {
			p.t.Errorf("renewal at %s: %s", to, kind)
		}
	}
	if kind := p.ask("255.255.255.255", "192.0.2.77"); kind != dhcpv4.MessageTypeNak {
		p.t.Errorf("request for a stale address: %s", kind)
	}
}

// ask sends a REQUEST for an address, renewing if it is the guest's, and returns
// the type of the answer.
func (p *pod) ask(server, address string) dhcpv4.MessageType {
	p.t.Helper()
	var conn net.PacketConn
	p.inside(p.guest, func() error {
		f, err := listenUDP(guestLink, dhcpClientPort)
		if err != nil {
			return err
		}
		defer f.Close()
		conn, err = net.FilePacketConn(f)
		return err
	})
	defer conn.Close()
	mac, _ := net.ParseMAC(p.guestMAC)
	asked := dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.ParseIP(address)))
	if address == p.plan.Guest[0].Addr().String() {
		asked = dhcpv4.WithClientIP(net.ParseIP(address))
	}
	request, err := dhcpv4.New(dhcpv4.WithHwAddr(mac), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), asked)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := conn.WriteTo(request.ToBytes(), &net.UDPAddr{IP: net.ParseIP(server), Port: dhcpPort}); err != nil {
		p.t.Fatal(err)
	}
	conn.SetReadDeadline(time.Now().Add(testkit.Patience))
	buffer := make([]byte, 1500)
	n, _, err := conn.ReadFrom(buffer)
	if err != nil {
		p.t.Errorf("ask %s for %s: %v", server, address, err)
		return dhcpv4.MessageTypeNone
	}
	reply, err := dhcpv4.FromBytes(buffer[:n])
	if err != nil {
		p.t.Fatal(err)
	}
	return reply.MessageType()
}

// probesInPeace has the guest ask whether anybody has its address, as RFC 5227
// wants it; the pod must keep silent.
func (p *pod) probesInPeace() {
	p.t.Helper()
	p.run(p.guest, nil, "busybox", "arping", "-D", "-q", "-c", "2", "-w", "2", "-I", guestLink, p.podAddress())
}

func (p *pod) bridgedState() string {
	p.t.Helper()
	return p.run(p.pod, nil, "ip", "-o", "addr", "show", "dev", "k6t-eth0") + p.run(p.pod, nil, "ip", "-o", "addr", "show", "dev", "eth0") +
		p.run(p.pod, nil, "ip", "-o", "link", "show", "eth0-nic") + p.run(p.pod, nil, "bridge", "-d", "link", "show", "dev", "eth0-nic") +
		p.run(p.pod, nil, "ip", "route", "show", "table", "all") + p.run(p.pod, nil, "nft", "--stateless", "list", "ruleset")
}

// TestTakeoverAfterCrash stops after every step, and starts anew with nothing but
// what the kernel holds.
func TestTakeoverAfterCrash(t *testing.T) {
	for name, n := range networks() {
		t.Run(name, func(t *testing.T) {
			for stop, s := range newBridged(t, n, Bridged{}).plan.steps() {
				t.Run(s.name, func(t *testing.T) { crashAfter(t, n, stop) })
			}
		})
	}
}

func crashAfter(t *testing.T, n network, stop int) {
	p := newBridged(t, n, Bridged{Queues: 2})
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
	p.replan(Bridged{Queues: 2})
	if diff := cmp.Diff(first, p.plan, equality); diff != "" {
		t.Errorf("plan, -before +after the crash:\n%s", diff)
	}
	p.start()
	p.serveTCP(p.guest, ":80")
	p.reach(p.other, p.podAddress()+":80", p.addressOf(p.other))
	p.checkStandIn()
	n.disconnect(p, "pod", p.pod)
	n.disconnect(p, "other", p.other)
	p.released()
}

// TestHostileBridgedGuest has a guest that says to be somebody else.
func TestHostileBridgedGuest(t *testing.T) {
	p := newBridged(t, networks()["bridge"], Bridged{MAC: guestMAC})
	p.start()
	own, other := p.podAddress(), p.addressOf(p.other)
	p.serveTCP(p.other, ":8080")
	p.serveTCP(p.pod, ":9092") // on the pod's address, which the guest has
	p.serveTCP(p.pod, "169.254.75.10:9093")
	p.reach(p.guest, other+":8080", own) // the wire works
	leaves := func(match string, attempt func()) { p.t.Helper(); p.comes(p.node, frames(match), attempt) }
	outside := func(match string, attempt func()) bool {
		p.t.Helper()
		return p.seen(p.node, frames(match), func() {
			attempt()
			// A frame that may leave comes after what may not.
			leaves("arp daddr ip "+own+" arp saddr ether "+guestMAC, func() { p.sendARP(guestMAC, own) })
		})
	}

	leaves("ip saddr "+own, func() { p.run(p.guest, nil, "busybox", "ping", "-c", "1", "-W", "5", other) })
	// Another address.
	p.run(p.guest, nil, "busybox", "ip", "addr", "add", "10.88.0.77/24", "dev", guestLink)
	if outside("ip saddr 10.88.0.77", func() { p.try("busybox", "ping", "-c", "1", "-W", "1", "-I", "10.88.0.77", other) }) {
		t.Error("packets with a false address leave the pod")
	}
	if outside("arp saddr ip 10.88.0.77", func() {
		p.try("busybox", "arping", "-U", "-c", "1", "-w", "1", "-I", guestLink, "10.88.0.77")
	}) {
		t.Error("ARP with a false address leaves the pod")
	}
	// ARP that names another MAC than the frame.
	if outside("arp saddr ip "+own+" arp saddr ether 52:54:00:00:00:99", func() { p.sendARP("52:54:00:00:00:99", own) }) {
		t.Error("ARP with a false MAC leaves the pod")
	}
	// A probe, which would deny another's address to its owner.
	leaves("arp saddr ip 0.0.0.0", func() { p.sendARPFor(guestMAC, "0.0.0.0", own) })
	if outside("arp saddr ip 0.0.0.0", func() { p.sendARPFor(guestMAC, "0.0.0.0", other) }) {
		t.Error("a probe for another's address leaves the pod")
	}
	// The same with a VLAN tag, of both kinds.
	for kind, tag := range map[string][]byte{"8021q": {0x81, 0, 0, 5}, "8021ad": {0x88, 0xa8, 0, 5}} {
		if outside("ether type "+kind, func() { p.sendARP(guestMAC, own, tag...) }) {
			t.Errorf("frames with a tag of kind %s leave the pod", kind)
		}
	}
	// DHCP, which concerns the pod alone.
	if outside("udp dport { 67, 68 }", func() { p.ask("255.255.255.255", "192.0.2.77") }) {
		t.Error("DHCP leaves the pod")
	}
	// The kernel of the neighbour sends reports of its groups meanwhile.
	if outside("ether saddr != "+p.macOf(p.other)+" ether type ip6", func() { p.try("busybox", "ping", "-6", "-c", "1", "-W", "1", "ff02::1%"+guestLink) }) {
		t.Error("IPv6 leaves the pod")
	}
	// The pod's own stack.
	nic := p.plan.Bridge.MAC
	p.run(p.guest, nil, "ip", "neigh", "replace", "169.254.75.10", "lladdr", nic, "dev", guestLink)
	p.run(p.guest, nil, "ip", "route", "add", "169.254.75.10/32", "dev", guestLink)
	p.run(p.other, nil, "ip", "neigh", "replace", own, "lladdr", nic, "dev", "eth0")
	for netns, address := range map[ns.NetNS]string{p.guest: "169.254.75.10:9093", p.other: own + ":9092"} {
		if p.seen(p.pod, packets("tcp dport { 9092, 9093 }"), func() { p.fail(netns, address) }) {
			t.Errorf("packets to %s come to the pod's own stack", address)
		}
	}
	p.run(p.other, nil, "ip", "neigh", "del", own, "dev", "eth0")
	// Another MAC, which also ARP says; and one that only the frames have.
	p.run(p.guest, nil, "ip", "link", "set", guestLink, "address", "52:54:00:00:00:99")
	p.run(p.guest, nil, "ip", "neigh", "replace", other, "lladdr", p.macOf(p.other), "dev", guestLink)
	for name, send := range map[string][]string{
		"arp": {"busybox", "arping", "-U", "-c", "1", "-w", "1", "-I", guestLink, own}, "ip": {"busybox", "ping", "-c", "1", "-W", "1", other},
	} {
		if outside("ether saddr 52:54:00:00:00:99", func() { p.try(send[0], send[1:]...) }) {
			t.Errorf("frames of type %s with a false MAC leave the pod", name)
		}
	}
	p.run(p.guest, nil, "ip", "link", "set", guestLink, "address", guestMAC)
	leaves("ether saddr "+guestMAC, func() { p.run(p.guest, nil, "busybox", "ping", "-c", "1", "-W", "5", other) })
	p.reach(p.guest, other+":8080", own) // the wire still works
}

// sendARP has the guest announce that an address has a MAC (RFC 826, 5227), in a
// frame with its own.
func (p *pod) sendARP(mac, address string, tag ...byte) {
	p.t.Helper()
	p.sendARPFor(mac, address, address, tag...)
}

// sendARPFor has the guest ask for a target, in the name of a sender.
func (p *pod) sendARPFor(mac, sender, target string, tag ...byte) {
	p.t.Helper()
	frame := append(bytes.Repeat([]byte{0xff}, 6), parseMAC(p.t, p.guestMAC)...)
	frame = append(frame, tag...)
	frame = append(frame, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1)
	frame = append(append(frame, parseMAC(p.t, mac)...), netip.MustParseAddr(sender).AsSlice()...)
	p.sendFrame(append(append(frame, make([]byte, 6)...), netip.MustParseAddr(target).AsSlice()...))
}

// sendFrame has the guest send a whole frame.
func (p *pod) sendFrame(frame []byte) {
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
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index})
	})
}

func parseMAC(t *testing.T, text string) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC(text)
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

func (p *pod) macOf(netns ns.NetNS) string {
	p.t.Helper()
	facts, err := ReadFacts(netns, "eth0")
	if err != nil {
		p.t.Fatal(err)
	}
	return facts.MAC
}

// try runs a program in the guest that may fail.
func (p *pod) try(name string, args ...string) {
	p.t.Helper()
	cmd := exec.Command(name, args...)
	p.inside(p.guest, cmd.Start)
	cmd.Wait()
}

// TestHostileDHCPServer: a server on the pod network cannot answer the guest, nor
// does ours answer the network.
func TestHostileDHCPServer(t *testing.T) {
	p := newBridged(t, networks()["bridge"], Bridged{})
	p.start()
	var rogue, guest net.PacketConn
	p.inside(p.other, func() (err error) { rogue, err = net.ListenPacket("udp4", ":67"); return err })
	defer rogue.Close()
	p.inside(p.guest, func() (err error) { guest, err = net.ListenPacket("udp4", ":68"); return err })
	defer guest.Close()
	send := func(port int) {
		if _, err := rogue.WriteTo([]byte("offer"), &net.UDPAddr{IP: net.ParseIP(p.podAddress()), Port: port}); err != nil {
			t.Fatal(err)
		}
	}
	if p.seen(p.guest, packets("udp dport 68"), func() {
		send(dhcpClientPort)
		p.comes(p.guest, packets("udp dport 69"), func() { send(69) }) // behind it
	}) {
		t.Error("UDP to the guest's port 68 arrives")
	}
	mac, _ := net.ParseMAC(p.guestMAC)
	discover, err := dhcpv4.New(dhcpv4.WithHwAddr(mac), dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover), dhcpv4.WithBroadcast(true))
	if err != nil {
		t.Fatal(err)
	}
	var neighbour net.PacketConn
	p.inside(p.other, func() error {
		f, err := listenUDP("eth0", dhcpClientPort)
		if err != nil {
			return err
		}
		defer f.Close()
		neighbour, err = net.FilePacketConn(f)
		return err
	})
	defer neighbour.Close()
	if _, err := neighbour.WriteTo(discover.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpPort}); err != nil {
		t.Fatal(err)
	}
	neighbour.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if n, from, err := neighbour.ReadFrom(make([]byte, 1500)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the guest's server answers the network: %d octets from %v, %v", n, from, err)
	}
}

// TestBridgeWithoutKernelFilter asks the kernel for a type of chain that it has not for bridges,
// which is its answer to any where it is built without nftables for them.
func TestBridgeWithoutKernelFilter(t *testing.T) {
	p := newBridged(t, networks()["calico"], Bridged{})
	p.plan.Tables[0].Chains[0].Type = "nat"
	if err := Apply(p.pod, p.plan); !errors.Is(err, ErrUnfiltered) {
		t.Fatalf("got %v", err)
	}
	p.checkStandIn()
	// What fails besides is not to be taken for it.
	p.plan.Bridge.MAC = "none"
	if err := Apply(p.pod, p.plan); err == nil || errors.Is(err, ErrUnfiltered) {
		t.Fatalf("got %v", err)
	}
}
