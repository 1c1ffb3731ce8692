package netsetup

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

func TestReadFacts(t *testing.T) {
	p := newPod(t, Masquerade{})
	want := Facts{
		Link: "eth0", Index: p.facts.Index, MTU: podMTU, MAC: p.facts.MAC,
		Addresses: []netip.Prefix{netip.MustParsePrefix(podIP + "/24")},
		Routes: []Route{
			{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.244.0.1")},
			{Destination: netip.MustParsePrefix("10.244.0.0/24")},
		},
	}
	if diff := cmp.Diff(want, p.facts, equality); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if mac, err := net.ParseMAC(p.facts.MAC); err != nil || len(mac) != 6 || p.facts.Index < 1 {
		t.Errorf("MAC %q, index %d", p.facts.MAC, p.facts.Index)
	}
	// The facts are the CNI plugin's: the set-up must not change them.
	if err := Apply(p.pod, p.plan); err != nil {
		t.Fatal(err)
	}
	again, err := ReadFacts(p.pod, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p.facts, again, equality); diff != "" {
		t.Errorf("changed by Apply, -before +after:\n%s", diff)
	}
	if _, err := ReadFacts(p.pod, "eth7"); !errors.Is(err, ErrNoLink) {
		t.Errorf("facts of no link: %v", err)
	}
}

// TestReadFactsMetric: of two default routes, the facts have the one that the
// kernel uses.
func TestReadFactsMetric(t *testing.T) {
	p := newPod(t, Masquerade{})
	p.inside(p.pod, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		// Before the CNI plugin's in every order but that of the metric.
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP("10.244.0.0").To4(), Priority: 50, Flags: int(netlink.FLAG_ONLINK)})
	})
	again, err := ReadFacts(p.pod, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p.facts, again, equality); diff != "" {
		t.Errorf("changed by a route of a larger metric, -before +after:\n%s", diff)
	}
}

func TestGuestIsConfiguredByDHCP(t *testing.T) {
	p := newPod(t, Masquerade{})
	told := p.start()
	for name, want := range map[string]string{
		"ip": guestIP, "mask": "24", "router": "10.0.2.1", "serverid": "10.0.2.1", "dns": "10.96.0.10",
		"mtu": "1450", "hostname": "testvm", "domain": "default.svc.cluster.local",
		"search": "default.svc.cluster.local svc.cluster.local", "lease": "86313600",
	} {
		if told[name] != want {
			t.Errorf("%s is %q, want %q", name, told[name], want)
		}
	}
	// The largest packet passes unfragmented, one octet more does not.
	p.run(p.guest, nil, "busybox", "ping", "-c", "1", "-W", "5", "-s", fmt.Sprint(podMTU-28), otherIP)
	p.inside(p.pod, func() error {
		for _, name := range []string{"k6t-eth0", "tap0"} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if link.Attrs().MTU != podMTU {
				t.Errorf("%s has MTU %d", name, link.Attrs().MTU)
			}
		}
		return nil
	})
}

// TestMTU: the guest is told the pod's MTU, all its links carry that much, and
// nothing on the way cuts a packet up. Several queues change nothing.
func TestMTU(t *testing.T) {
	for _, mtu := range []int{1280, 9000} {
		for name, setUp := range map[string]func(t *testing.T) *pod{
			"masquerade": func(t *testing.T) *pod { return newPodOfMTU(t, Masquerade{Queues: 4}, mtu) },
			"bridge":     func(t *testing.T) *pod { return newBridgedOfMTU(t, networks()["ptp"], Bridged{Queues: 4}, mtu) },
		} {
			t.Run(fmt.Sprintf("%s %d", name, mtu), func(t *testing.T) {
				p := setUp(t)
				other := p.addressOf(p.other)
				if told := p.start(); told["mtu"] != fmt.Sprint(mtu) {
					t.Errorf("told MTU %q", told["mtu"])
				}
				whole := fmt.Sprintf("icmp type echo-request ip length %d", mtu)
				p.comes(p.other, packets(whole), func() {
					p.run(p.guest, nil, "busybox", "ping", "-c", "1", "-W", "5", "-s", fmt.Sprint(mtu-28), other)
				})
				p.serveTCP(p.other, ":8080")
				for range 8 { // flows go to queues by hash
					conn, _, err := p.dial(p.guest, other+":8080")
					if err != nil {
						t.Fatal(err)
					}
					echo(t, conn, 1<<18)
				}
			})
		}
	}
}

// TestLeaseIsRenewed: and an address that the guest had elsewhere is not.
func TestLeaseIsRenewed(t *testing.T) {
	p := newPod(t, Masquerade{})
	first := p.start()
	p.renew()
	if again := p.runDHCPClient(); again["ip"] != first["ip"] {
		t.Errorf("after a reboot the guest has %s, had %s", again["ip"], first["ip"])
	}
}

func TestAllPortsLeadToTheGuest(t *testing.T) {
	p := newPod(t, Masquerade{})
	p.start()
	p.serveTCP(p.guest, ":80")
	p.serveTCP(p.guest, ":61000")
	p.serveTCP(p.other, ":8080")
	p.serveTCP(p.pod, podIP+":9090") // hidden by the guest
	p.reach(p.other, podIP+":80", otherIP)
	p.reach(p.other, podIP+":61000", otherIP)
	p.reach(p.guest, otherIP+":8080", podIP)
	p.reach(p.pod, otherIP+":8080", podIP)
	p.reach(p.pod, "127.0.0.1:80", "10.0.2.1")
	if err := p.fail(p.other, podIP+":9090"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("want the guest's refusal, got %v", err)
	}
	// The pod's own stack would answer: make it the guest who does.
	p.inside(p.pod, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/icmp_echo_ignore_all", []byte("1"), 0)
	})
	p.run(p.other, nil, "busybox", "ping", "-c", "1", "-W", "5", podIP)
}

func TestOnlyListedPortsLeadToTheGuest(t *testing.T) {
	p := newPod(t, Masquerade{Ports: []Port{{"TCP", 80}, {"UDP", 53}}})
	p.start()
	p.serveTCP(p.guest, ":80")
	p.serveTCP(p.guest, ":53")
	p.serveTCP(p.guest, ":81")
	p.serveTCP(p.pod, podIP+":9090")
	p.serveTCP(p.pod, "127.0.0.1:9091")
	p.serveTCP(p.other, ":8080")
	p.reach(p.other, podIP+":80", otherIP)
	p.reach(p.pod, "127.0.0.1:80", "10.0.2.1")
	p.reach(p.pod, "127.0.0.1:9091", "127.0.0.1")
	p.reach(p.other, podIP+":9090", otherIP)
	p.reach(p.guest, otherIP+":8080", podIP)
	for _, port := range []string{"53", "81"} { // 53 is listed for UDP only
		if err := p.fail(p.other, podIP+":"+port); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("port %s: want the pod's refusal, got %v", port, err)
		}
		if err := p.fail(p.pod, "127.0.0.1:"+port); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("loopback port %s: want the pod's refusal, got %v", port, err)
		}
	}
	p.echoUDP(p.guest, ":53")
	p.exchangeUDP(p.other, podIP+":53")
}

func (p *pod) echoUDP(netns ns.NetNS, address string) { p.echoUDPBy(netns, "udp4", address) }

func (p *pod) echoUDPBy(netns ns.NetNS, network, address string) {
	p.t.Helper()
	var conn net.PacketConn
	p.inside(netns, func() (err error) {
		conn, err = net.ListenPacket(network, address)
		return err
	})
	p.t.Cleanup(func() { conn.Close() })
	go func() {
		b := make([]byte, 64)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			conn.WriteTo(b[:n], from)
		}
	}()
}

func (p *pod) exchangeUDP(netns ns.NetNS, address string) { p.exchangeUDPBy(netns, "udp4", address) }

func (p *pod) exchangeUDPBy(netns ns.NetNS, network, address string) {
	p.t.Helper()
	var conn net.Conn
	p.inside(netns, func() (err error) {
		conn, err = net.Dial(network, address)
		return err
	})
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(testkit.Patience))
	if _, err := conn.Write([]byte("hello")); err != nil {
		p.t.Fatal(err)
	}
	b := make([]byte, 64)
	if n, err := conn.Read(b); err != nil || string(b[:n]) != "hello" {
		p.t.Errorf("UDP to %s: got %q, %v", address, b[:n], err)
	}
}

func TestApplyAgainKeepsConnections(t *testing.T) {
	p := newPod(t, Masquerade{Ports: []Port{{"TCP", 80}}})
	p.start()
	p.serveTCP(p.guest, ":80")
	p.serveTCP(p.other, ":8080")
	conns := []net.Conn{
		p.reach(p.other, podIP+":80", otherIP),
		p.reach(p.guest, otherIP+":8080", podIP),
		p.reach(p.pod, "127.0.0.1:80", "10.0.2.1"),
	}
	before := p.state()
	for range 3 {
		if err := Apply(p.pod, p.plan); err != nil {
			t.Fatal(err)
		}
		for _, conn := range conns {
			echo(t, conn, 1<<16)
		}
	}
	if diff := cmp.Diff(before, p.state()); diff != "" {
		t.Errorf("-first +again:\n%s", diff)
	}
	p.reach(p.other, podIP+":80", otherIP)
}

// echo sends random data and wants it back.
func echo(t *testing.T, conn net.Conn, size int) {
	t.Helper()
	conn.SetDeadline(time.Now().Add(testkit.Patience))
	data := make([]byte, size)
	rand.Read(data)
	go conn.Write(data)
	got := make([]byte, size)
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("connection from %s: %v", conn.LocalAddr(), err)
	}
}

// state is the pod's network as the tools show it.
func (p *pod) state() string {
	p.t.Helper()
	return p.run(p.pod, nil, "ip", "addr", "show", "dev", "k6t-eth0") +
		p.run(p.pod, nil, "ip", "route") +
		p.run(p.pod, nil, "nft", "--stateless", "list", "ruleset")
}

// TestApplyRepairs starts from what a crash, an older version or the kernel may
// have left.
func TestApplyRepairs(t *testing.T) {
	clean := newPod(t, Masquerade{Ports: []Port{{"TCP", 80}}})
	if err := Apply(clean.pod, clean.plan); err != nil {
		t.Fatal(err)
	}
	want := clean.nft()
	for name, left := range map[string][][]string{
		"bare bridge": {{"ip", "link", "add", "k6t-eth0", "type", "bridge"}},
		"other settings": {
			{"ip", "link", "add", "k6t-eth0", "mtu", "1300", "address", "02:00:00:00:00:07", "type", "bridge"},
			{"ip", "addr", "add", "192.168.9.1/24", "dev", "k6t-eth0"}, {"ip", "link", "set", "k6t-eth0", "up"},
		},
		"half a table":  {{"nft", "add table ip kubeqemu; add chain ip kubeqemu output; add rule ip kubeqemu output drop"}},
		"older table":   {{"nft", "add table ip kubeqemu; add chain ip kubeqemu forward { type filter hook forward priority -10; policy drop; }"}},
		"foreign table": {{"nft", "add table ip istio; add chain ip istio x"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t, Masquerade{Ports: []Port{{"TCP", 80}}})
			for _, command := range left {
				p.run(p.pod, nil, command[0], command[1:]...)
			}
			p.start()
			p.serveTCP(p.guest, ":80")
			p.reach(p.other, podIP+":80", otherIP)
			if diff := cmp.Diff(want, p.nft()); diff != "" {
				t.Errorf("table, -clean +repaired:\n%s", diff)
			}
			p.checkBridge()
			if name == "foreign table" {
				p.run(p.pod, nil, "nft", "list", "table", "ip", "istio")
			}
		})
	}
}

func (p *pod) nft() string {
	p.t.Helper()
	return p.run(p.pod, nil, "nft", "--stateless", "list", "table", "ip", TableName)
}

func (p *pod) checkBridge() {
	p.t.Helper()
	p.inside(p.pod, func() error {
		link, err := netlink.LinkByName("k6t-eth0")
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		if len(addrs) != 1 || addrs[0].IPNet.String() != "10.0.2.1/24" || link.Attrs().HardwareAddr.String() != BridgeMAC || link.Attrs().MTU != podMTU {
			p.t.Errorf("bridge %+v has addresses %v", link.Attrs(), addrs)
		}
		return nil
	})
}

func TestApplyRefusesForeignLink(t *testing.T) {
	p := newPod(t, Masquerade{})
	p.run(p.pod, nil, "ip", "link", "add", "k6t-eth0", "type", "veth", "peer", "name", "x0")
	if err := Apply(p.pod, p.plan); err == nil || !strings.Contains(err.Error(), `"veth"`) {
		t.Errorf("got %v", err)
	}
}

// TestHostileGuest has a guest that routes and addresses as it likes.
func TestHostileGuest(t *testing.T) {
	p := newPod(t, Masquerade{Ports: []Port{{"TCP", 80}}})
	p.start()
	p.serveTCP(p.pod, "127.0.0.1:9091")
	p.serveTCP(p.pod, ":9092")
	p.serveTCP(p.other, ":8080")
	p.reach(p.pod, "127.0.0.1:9091", "127.0.0.1")
	p.reach(p.guest, otherIP+":8080", podIP) // the wire works
	p.inside(p.guest, func() error {
		link, err := netlink.LinkByName(guestLink)
		if err != nil {
			return err
		}
		// 127.0.0.1 as an address of the network: the guest gives up its own loopback.
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+guestLink+"/route_localnet", []byte("1"), 0); err != nil {
			return err
		}
		_, loopback, _ := net.ParseCIDR("127.0.0.0/8")
		return netlink.RouteAdd(&netlink.Route{Dst: loopback, Gw: net.ParseIP("10.0.2.1"), LinkIndex: link.Attrs().Index, Src: net.ParseIP(guestIP)})
	})
	p.run(p.guest, nil, "busybox", "ip", "addr", "del", "127.0.0.1/8", "dev", "lo")
	p.comes(p.pod, packets("ip daddr 127.0.0.1 tcp dport 9091"), func() { p.fail(p.guest, "127.0.0.1:9091") })
	// From an address that is not its own, to the pod and beyond it.
	p.run(p.guest, nil, "busybox", "ip", "addr", "add", "10.0.2.3/24", "dev", guestLink)
	spoof := func(address string) error {
		var err error
		p.inside(p.guest, func() error {
			d := net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP("10.0.2.3")}}
			conn, e := d.Dial("tcp4", address)
			if err = e; e == nil {
				conn.Close()
			}
			return nil
		})
		return err
	}
	for _, address := range []string{"10.0.2.1:9092", otherIP + ":8080"} {
		p.comes(p.pod, packets("ip saddr 10.0.2.3"), func() {
			if err := spoof(address); err == nil {
				t.Errorf("reached %s from a false address", address)
			}
		})
	}
	// By IPv6 link-local address.
	var links []netlink.Link
	p.inside(p.pod, func() (err error) { links, err = netlink.LinkList(); return err })
	for _, l := range links {
		if l.Attrs().Name != "k6t-eth0" && l.Attrs().Name != "tap0" {
			continue
		}
		p.inside(p.pod, func() error {
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V6)
			if len(addrs) > 0 {
				t.Errorf("%s has IPv6 addresses %v", l.Attrs().Name, addrs)
			}
			return err
		})
	}
}

// traffic says which frames or packets are counted, and where.
type traffic struct {
	family string // nftables' own: bridge, ip
	hook   string // at whose beginning they are counted
	match  string // an expression of nft(8)
}

// frames returns what comes to a bridge.
func frames(match string) traffic { return traffic{"bridge", "prerouting", match} }

// packets returns what comes into a namespace.
func packets(match string) traffic { return traffic{"ip", "prerouting", match} }

// watch counts what matches until end, and seen reports whether there was any.
func (p *pod) watch(netns ns.NetNS, of traffic) (seen func() bool, end func()) {
	p.t.Helper()
	p.watched++
	table := fmt.Sprintf("%s probe%d", of.family, p.watched)
	p.run(netns, nil, "nft", fmt.Sprintf("add table %s; add chain %[1]s c { type filter hook %[2]s priority -390; }; add rule %[1]s c %[3]s counter",
		table, of.hook, of.match))
	return func() bool {
			return !strings.Contains(p.run(netns, nil, "nft", "list", "table "+table), "packets 0 ")
		},
		func() { p.run(netns, nil, "nft", "delete", "table "+table) }
}

// comes waits until something matches because of an attempt: the wire takes a moment, and a busy machine longer.
func (p *pod) comes(netns ns.NetNS, of traffic, attempt func()) {
	p.t.Helper()
	seen, end := p.watch(netns, of)
	defer end()
	attempt()
	testkit.Until(p.t, "something with "+of.match+" comes by", seen)
}

// seen reports whether anything matches before an attempt ends. The attempt's last act must come after what is looked for.
func (p *pod) seen(netns ns.NetNS, of traffic, attempt func()) bool {
	p.t.Helper()
	seen, end := p.watch(netns, of)
	defer end()
	attempt()
	return seen()
}

// TestHostileNeighbour has another pod route past the list of ports, and through
// the pod, which forwards now.
func TestHostileNeighbour(t *testing.T) {
	p := newPod(t, Masquerade{Ports: []Port{{"TCP", 80}}})
	p.start()
	p.serveTCP(p.guest, ":80")
	p.serveTCP(p.guest, ":81")
	p.serveTCP(p.pod, "127.0.0.1:9091")
	p.run(p.other, nil, "ip", "route", "add", "10.0.2.0/24", "via", podIP)
	for _, port := range []string{"80", "81"} {
		p.comes(p.pod, packets("ip daddr 10.0.2.2 tcp dport "+port), func() { p.fail(p.other, guestIP+":"+port) })
	}
	// The same by a second network of the pod's, as Multus adds it.
	p.run(p.other, nil, "ip", "link", "add", "net1", "type", "veth", "peer", "name", "x1")
	p.moveLink(p.other, "x1", p.pod, "net1")
	p.inside(p.other, func() error { return configureLink("net1", "10.245.0.6/24", podMTU) })
	p.inside(p.pod, func() error { return configureLink("net1", "10.245.0.5/24", podMTU) })
	p.run(p.other, nil, "ip", "route", "replace", "10.0.2.0/24", "via", "10.245.0.5")
	p.comes(p.pod, packets("iifname net1 ip daddr 10.0.2.2 tcp dport 81"), func() { p.fail(p.other, guestIP+":81") })
	// Through the pod to a third: nothing that came in by eth0 leaves by it.
	p.run(p.other, nil, "ip", "route", "add", "192.0.2.0/24", "via", podIP)
	const third = "ip daddr 192.0.2.1"
	if p.seen(p.pod, traffic{"ip", "postrouting", third}, func() {
		p.comes(p.pod, packets(third), func() { p.fail(p.other, "192.0.2.1:80") })
	}) {
		t.Error("the pod routes between strangers")
	}
	// From the second network to the pod network: its machines are no neighbours of the pods there.
	p.run(p.other, nil, "ip", "route", "add", "198.51.100.0/24", "via", "10.245.0.5")
	const beyond = "iifname net1 ip daddr 198.51.100.1"
	if p.seen(p.pod, traffic{"ip", "postrouting", "ip daddr 198.51.100.1"}, func() {
		p.comes(p.pod, packets(beyond), func() { p.fail(p.other, "198.51.100.1:80") })
	}) {
		t.Error("the pod routes from its second network to the pod network")
	}
	// Loopback over the wire.
	p.run(p.other, nil, "ip", "addr", "del", "127.0.0.1/8", "dev", "lo")
	p.inside(p.other, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/conf/eth0/route_localnet", []byte("1"), 0)
	})
	p.run(p.other, nil, "ip", "route", "add", "127.0.0.0/8", "via", podIP, "src", otherIP)
	for _, port := range []string{"80", "9091"} {
		p.comes(p.pod, packets("ip daddr 127.0.0.1 tcp dport "+port), func() { p.fail(p.other, "127.0.0.1:"+port) })
	}
	p.reach(p.other, podIP+":80", otherIP) // the wire still works
}

func TestNothingIsLeftOfThePodsLinks(t *testing.T) {
	ours := []string{"k6t-eth0", "tap0"}
	before := existing(ours)
	p := newPod(t, Masquerade{Queues: 2})
	if err := Apply(p.pod, p.plan); err != nil {
		t.Fatal(err)
	}
	queues, err := OpenTap(p.pod, p.plan)
	if err != nil {
		t.Fatal(err)
	}
	if len(queues) != 2 {
		t.Fatalf("%d queues", len(queues))
	}
	if _, err := OpenTap(p.pod, p.plan); !errors.Is(err, ErrTapInUse) {
		t.Errorf("second tap beside the first: %v", err)
	}
	for _, f := range queues {
		f.Close()
	}
	p.gone("tap0")
	queues, err = OpenTap(p.pod, p.plan)
	if err != nil {
		t.Fatalf("tap after an earlier one: %v", err)
	}
	for _, f := range queues {
		defer f.Close()
	}
	// The handler's own namespace has nothing of all this.
	if after := existing(ours); len(after) > len(before) {
		t.Errorf("links in the host's namespace: %v before, %v after", before, after)
	}
	// Two sockets: a handler that crashed may have handed one over already.
	for range 2 {
		f, err := ListenDHCP(p.pod, p.plan)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("socket flags %x, %v", flags, err)
		}
	}
}

// gone waits for a link to vanish. A program that another test is just starting
// holds all descriptors for a moment, until it is executed.
func (p *pod) gone(name string) {
	p.t.Helper()
	testkit.Eventually(p.t, "the end of "+name, func() (err error) {
		p.inside(p.pod, func() error {
			_, err = netlink.LinkByName(name)
			return nil
		})
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil
		}
		return fmt.Errorf("it is still there: %w", err)
	})
}

// moveLink moves a link into another namespace under a new name.
func (p *pod) moveLink(from ns.NetNS, name string, to ns.NetNS, newName string) {
	p.t.Helper()
	p.inside(from, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(link, int(to.Fd()))
	})
	p.inside(to, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetName(link, newName)
	})
}

// existing returns those names that are links of the test's own namespace.
func existing(names []string) (found []string) {
	for _, name := range names {
		if _, err := netlink.LinkByName(name); err == nil {
			found = append(found, name)
		}
	}
	return found
}
