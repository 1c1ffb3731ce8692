package netsetup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/nclient6"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/netsetup/ipv6"
)

const (
	podIP6    = "fd00:10:244::5"
	otherIP6  = "fd00:10:244::6"
	guestIP6  = "fd10:0:2::2"
	gateway6  = "fd10:0:2::1"
	router6   = "fe80::1"
	defaultIP = "fd00:10:244::1"
)

// newPod6 is a pod with IPv6 beside another pod, dual stack or not.
func newPod6(t *testing.T, m Masquerade, dual bool, mtu int) *pod {
	t.Helper()
	p := newPodOfMTU(t, m, mtu)
	for netns, address := range map[ns.NetNS]string{p.pod: podIP6, p.other: otherIP6} {
		p.run(netns, nil, "ip", "addr", "add", address+"/64", "dev", "eth0", "nodad")
		// Bridge and tap come to a namespace in which a runtime has switched IPv6 off for new links.
		p.run(netns, nil, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
	}
	p.run(p.pod, nil, "ip", "route", "add", "default", "via", defaultIP)
	if !dual {
		p.run(p.pod, nil, "ip", "-4", "addr", "flush", "dev", "eth0")
	}
	var err error
	if p.facts, err = ReadFacts(p.pod, "eth0"); err != nil {
		t.Fatal(err)
	}
	if p.plan, err = PlanMasquerade(p.facts, m); err != nil {
		t.Fatal(err)
	}
	return p
}

// start6 is start for IPv6. It returns what the guest was told by DHCPv6. The guest's kernel
// makes its routes of router advertisements.
func (p *pod) start6() *dhcpv6.Message {
	p.t.Helper()
	if err := Apply(p.pod, p.plan); err != nil {
		p.t.Fatal(err)
	}
	queues, err := OpenTap(p.pod, p.plan)
	if err != nil {
		p.t.Fatal(err)
	}
	p.serve6()
	p.connectGuest(queues)
	return p.configure6()
}

func (p *pod) serve6() {
	p.t.Helper()
	router, dhcp, err := ListenIPv6(p.pod, p.plan)
	if err != nil {
		p.t.Fatal(err)
	}
	lease := p.plan.Lease6()
	lease.DNS = []netip.Addr{netip.MustParseAddr("fd00:10:96::a")}
	lease.SearchDomains = []string{"default.svc.cluster.local", "svc.cluster.local"}
	var sockets ipv6.Sockets
	// The launcher makes connections of the files in the pod's namespace.
	p.inside(p.pod, func() (err error) {
		if sockets.Router, err = net.FilePacketConn(router); err != nil {
			return err
		}
		sockets.DHCP, err = net.FilePacketConn(dhcp)
		return err
	})
	router.Close()
	dhcp.Close()
	server, err := ipv6.Serve(sockets, lease, slog.New(slog.NewTextHandler(p.t.Output(), nil)))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { server.Close() })
}

// configure6 waits for the guest's route, and takes an address by DHCPv6.
func (p *pod) configure6() *dhcpv6.Message {
	p.t.Helper()
	p.route6()
	var client *nclient6.Client
	mac, _ := net.ParseMAC(p.guestMAC)
	testkit.Eventually(p.t, "DHCPv6 client gets a link-local address that is no longer being probed", func() error {
		return p.guest.Do(func(ns.NetNS) (err error) {
			client, err = nclient6.New(guestLink)
			return err
		})
	})
	defer client.Close()
	ctx, cancel := context.WithTimeout(p.t.Context(), testkit.Patience)
	defer cancel()
	advertise, err := client.Solicit(ctx)
	if err != nil {
		p.t.Fatalf("solicit: %v", err)
	}
	reply, err := client.Request(ctx, advertise)
	if err != nil {
		p.t.Fatalf("request: %v", err)
	}
	if !strings.EqualFold(mac.String(), p.guestMAC) || reply.Options.OneIANA() == nil || reply.Options.OneIANA().Options.OneAddress() == nil {
		p.t.Fatalf("no address: %s", reply.Summary())
	}
	p.run(p.guest, nil, "ip", "addr", "replace", reply.Options.OneIANA().Options.OneAddress().IPv6Addr.String()+"/128", "dev", guestLink, "nodad")
	return reply
}

func (p *pod) route6() {
	p.t.Helper()
	testkit.Eventually(p.t, "the guest gets a default route by router advertisement", func() error {
		if out := p.run(p.guest, nil, "ip", "-6", "route", "show", "default"); !strings.Contains(out, "via "+router6) {
			return errors.New(out)
		}
		return nil
	})
}

func brackets(ip, port string) string { return net.JoinHostPort(ip, port) }

func TestGuestIsConfiguredByIPv6(t *testing.T) {
	p := newPod6(t, Masquerade{}, true, podMTU)
	told := p.start6()
	if ip := told.Options.OneIANA().Options.OneAddress(); ip.IPv6Addr.String() != guestIP6 || ip.ValidLifetime != 999*24*time.Hour {
		t.Errorf("told %v", ip)
	}
	if dns := told.Options.DNS(); len(dns) != 1 || dns[0].String() != "fd00:10:96::a" {
		t.Errorf("name servers %v", dns)
	}
	if search := told.Options.DomainSearchList(); search == nil || !cmp.Equal(search.Labels, []string{"default.svc.cluster.local", "svc.cluster.local"}) {
		t.Errorf("search domains %v", search)
	}
	routes := p.run(p.guest, nil, "ip", "-6", "route")
	for _, want := range []string{"fd10:0:2::/120 dev " + guestLink, "default via " + router6, "mtu 1450"} {
		if !strings.Contains(routes+p.run(p.guest, nil, "ip", "-6", "route", "get", otherIP6), want) {
			t.Errorf("routes without %q:\n%s", want, routes)
		}
	}
	// The kernel has made no address of the prefix by itself.
	if addresses := p.run(p.guest, nil, "ip", "-6", "-o", "addr", "show", "dev", guestLink, "scope", "global"); strings.Count(addresses, "inet6") != 1 {
		t.Errorf("addresses:\n%s", addresses)
	}
	// IPv4 beside it.
	p.serveDHCP()
	if four := p.runDHCPClient(); four["ip"] != guestIP {
		t.Errorf("IPv4 address %q", four["ip"])
	}
}

func TestMTUOfIPv6(t *testing.T) {
	for _, mtu := range []int{1280, 9000} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			p := newPod6(t, Masquerade{Queues: 2}, false, mtu)
			p.start6()
			testkit.Eventually(p.t, "the guest is told the MTU", func() error {
				got, err := p.read(p.guest, "/proc/sys/net/ipv6/conf/"+guestLink+"/mtu")
				if err == nil && got != fmt.Sprint(mtu) {
					// The guest's link cannot carry more than its own MTU of 1500; the message of 9000 raises nothing.
					if mtu > 1500 {
						p.run(p.guest, nil, "ip", "link", "set", guestLink, "mtu", fmt.Sprint(mtu))
					}
					err = fmt.Errorf("MTU %s", got)
				}
				return err
			})
			p.comes6(p.other, "prerouting", fmt.Sprintf("icmpv6 type echo-request ip6 length %d", mtu-40), func() {
				p.run(p.guest, nil, "busybox", "ping6", "-c", "1", "-W", "5", "-s", fmt.Sprint(mtu-48), otherIP6)
			})
			p.serveTCP6(p.other, "[::]:8080")
			conn := p.reach6(p.guest, brackets(otherIP6, "8080"), podIP6)
			echo(t, conn, 1<<18)
		})
	}
}

func (p *pod) read(netns ns.NetNS, file string) (string, error) {
	var out []byte
	err := netns.Do(func(ns.NetNS) (err error) {
		out, err = os.ReadFile(file)
		return err
	})
	return strings.TrimSpace(string(out)), err
}

func (p *pod) serveTCP6(netns ns.NetNS, address string) { p.serveTCPBy(netns, "tcp6", address) }

func (p *pod) dial6(netns ns.NetNS, address string, from net.Addr, patience time.Duration) (net.Conn, string, error) {
	p.t.Helper()
	var conn net.Conn
	err := netns.Do(func(ns.NetNS) (err error) {
		conn, err = (&net.Dialer{Timeout: patience, LocalAddr: from}).Dial("tcp6", address)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	p.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(testkit.Patience))
	seen, err := readLine(conn)
	return conn, seen, err
}

func (p *pod) reach6(netns ns.NetNS, address, wantSeen string) net.Conn {
	p.t.Helper()
	conn, seen, err := p.dial6(netns, address, nil, testkit.Patience)
	if err != nil {
		p.t.Fatalf("reach %s: %v", address, err)
	}
	if seen != wantSeen {
		p.t.Errorf("the server at %s saw %s, want %s", address, seen, wantSeen)
	}
	return conn
}

func (p *pod) fail6(netns ns.NetNS, address string) error {
	p.t.Helper()
	_, seen, err := p.dial6(netns, address, nil, inVain)
	if err == nil {
		p.t.Errorf("reached %s as %s", address, seen)
	}
	return err
}

func TestAllPortsLeadToTheGuestByIPv6(t *testing.T) {
	for name, dual := range map[string]bool{"dual stack": true, "IPv6 only": false} {
		t.Run(name, func(t *testing.T) {
			p := newPod6(t, Masquerade{}, dual, podMTU)
			p.start6()
			p.serveTCP6(p.guest, "[::]:80")
			p.serveTCP6(p.other, "[::]:8080")
			p.serveTCP6(p.pod, brackets(podIP6, "9090")) // hidden by the guest
			p.reach6(p.other, brackets(podIP6, "80"), otherIP6)
			p.reach6(p.guest, brackets(otherIP6, "8080"), podIP6)
			p.reach6(p.pod, brackets(otherIP6, "8080"), podIP6)
			if err := p.fail6(p.pod, "[::1]:80"); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("want the pod's refusal, got %v", err)
			}
			if err := p.fail6(p.other, brackets(podIP6, "9090")); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("want the guest's refusal, got %v", err)
			}
			p.echoUDPBy(p.guest, "udp6", "[::]:53")
			p.exchangeUDPBy(p.other, "udp6", brackets(podIP6, "53"))
			// The pod's own stack would answer: make it the guest who does.
			p.run(p.pod, nil, "sysctl", "-qw", "net.ipv6.icmp.echo_ignore_all=1")
			p.run(p.other, nil, "busybox", "ping6", "-c", "1", "-W", "5", podIP6)
		})
	}
}

func TestOnlyListedPortsLeadToTheGuestByIPv6(t *testing.T) {
	p := newPod6(t, Masquerade{Ports: []Port{{"TCP", 80}, {"UDP", 53}}}, true, podMTU)
	p.start6()
	for _, port := range []string{"80", "53", "81"} {
		p.serveTCP6(p.guest, "[::]:"+port)
	}
	p.serveTCP6(p.pod, brackets(podIP6, "9090"))
	p.serveTCP6(p.pod, "[::1]:9091")
	p.reach6(p.other, brackets(podIP6, "80"), otherIP6)
	p.reach6(p.pod, "[::1]:9091", "::1")
	p.reach6(p.other, brackets(podIP6, "9090"), otherIP6)
	for _, port := range []string{"53", "81"} { // 53 is listed for UDP only
		if err := p.fail6(p.other, brackets(podIP6, port)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("port %s: want the pod's refusal, got %v", port, err)
		}
	}
	p.echoUDPBy(p.guest, "udp6", "[::]:53")
	p.exchangeUDPBy(p.other, "udp6", brackets(podIP6, "53"))
}

func TestApplyAgainKeepsIPv6Connections(t *testing.T) {
	p := newPod6(t, Masquerade{Ports: []Port{{"TCP", 80}}}, true, podMTU)
	p.start6()
	p.serveTCP6(p.guest, "[::]:80")
	p.serveTCP6(p.other, "[::]:8080")
	conns := []net.Conn{
		p.reach6(p.other, brackets(podIP6, "80"), otherIP6), p.reach6(p.guest, brackets(otherIP6, "8080"), podIP6),
	}
	state := func() string { return p.state() + p.run(p.pod, nil, "ip", "-6", "route") }
	before := state()
	for range 3 {
		if err := Apply(p.pod, p.plan); err != nil {
			t.Fatal(err)
		}
		for _, conn := range conns {
			echo(t, conn, 1<<16)
		}
	}
	if diff := cmp.Diff(before, state()); diff != "" {
		t.Errorf("-first +again:\n%s", diff)
	}
	again, err := ReadFacts(p.pod, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p.facts, again, equality); diff != "" {
		t.Errorf("facts changed by Apply, -before +after:\n%s", diff)
	}
}

// TestRestartedHandlerKeepsTheLease: a virt-handler that is restarted opens the sockets anew while the guest's lease is
// active, and a guest that is restarted gets the same address.
func TestRestartedHandlerKeepsTheLease(t *testing.T) {
	p := newPod6(t, Masquerade{}, false, podMTU)
	p.start6()
	p.serve6() // beside the first
	for range 2 {
		p.run(p.guest, nil, "ip", "addr", "flush", "dev", guestLink)
		p.run(p.guest, nil, "ip", "link", "set", guestLink, "down")
		p.run(p.guest, nil, "ip", "link", "set", guestLink, "up")
		if again := p.configure6(); again.Options.OneIANA().Options.OneAddress().IPv6Addr.String() != guestIP6 {
			t.Errorf("after a restart: %s", again.Summary())
		}
	}
	p.serveTCP6(p.other, "[::]:8080")
	p.reach6(p.guest, brackets(otherIP6, "8080"), podIP6)
}

// comes6 waits until a matching packet is seen in a namespace, at the beginning of a hook, after an attempt.
func (p *pod) comes6(netns ns.NetNS, hook, match string, attempt func()) {
	p.t.Helper()
	p.run(netns, nil, "nft", fmt.Sprintf("add table ip6 probe; add chain ip6 probe c { type filter hook %s priority -390; }; add rule ip6 probe c %s counter", hook, match))
	defer p.run(netns, nil, "nft", "delete", "table", "ip6", "probe")
	attempt()
	// The wire between guest and pod takes a moment.
	testkit.Until(p.t, "a packet with "+match, func() bool {
		return !strings.Contains(p.run(netns, nil, "nft", "list", "table", "ip6", "probe"), "packets 0 ")
	})
}

// dropped runs an attempt whose packets come to the pod, and are not let in.
func (p *pod) dropped(match string, attempt func()) {
	p.t.Helper()
	p.run(p.pod, nil, "nft", fmt.Sprintf("add table ip6 after; add chain ip6 after c { type filter hook prerouting priority -250; }; add rule ip6 after c %s counter", match))
	defer p.run(p.pod, nil, "nft", "delete", "table", "ip6", "after")
	p.comes6(p.pod, "prerouting", match, attempt)
	if seen := p.run(p.pod, nil, "nft", "list", "table", "ip6", "after"); !strings.Contains(seen, "packets 0 ") {
		p.t.Errorf("packets with %s are let in:\n%s", match, seen)
	}
}

// sendICMP sends a message from the guest, with a hop limit that neighbours believe.
func (p *pod) sendICMP(from, to string, message []byte) {
	p.t.Helper()
	p.inside(p.guest, func() error {
		link, err := netlink.LinkByName(guestLink)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		address := func(ip string) *unix.SockaddrInet6 {
			return &unix.SockaddrInet6{Addr: netip.MustParseAddr(ip).As16(), ZoneId: uint32(link.Attrs().Index)}
		}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1),
			unix.Bind(fd, address(from)), unix.Sendto(fd, message, 0, address(to)))
	})
}

// neighbour is an advertisement that the target is at the guest's MAC.
func neighbour(target string) []byte {
	a := netip.MustParseAddr(target).As16()
	out := append([]byte{icmpNeighborAdvertisement, 0, 0, 0, 0x20, 0, 0, 0}, a[:]...)
	return append(out, 2, 1, 0x52, 0x54, 0, 0x12, 0x34, 0x56)
}

// TestHostileGuestByIPv6 has a guest that addresses and advertises as it likes.
func TestHostileGuestByIPv6(t *testing.T) {
	p := newPod6(t, Masquerade{Ports: []Port{{"TCP", 80}}}, true, podMTU)
	p.start6()
	p.serveTCP6(p.pod, "[::]:9092")
	p.serveTCP6(p.other, "[::]:8080")
	p.reach6(p.guest, brackets(otherIP6, "8080"), podIP6) // the wire works
	var linkLocal string
	p.inside(p.guest, func() error {
		link, err := netlink.LinkByName(guestLink)
		if err != nil {
			return err
		}
		addresses, err := netlink.AddrList(link, netlink.FAMILY_V6)
		for _, a := range addresses {
			if a.IP.IsLinkLocalUnicast() {
				linkLocal = a.IP.String()
			}
		}
		return err
	})
	// From an address that is not its own, to the pod and beyond it.
	p.run(p.guest, nil, "ip", "addr", "add", "fd10:0:2::3/128", "dev", guestLink, "nodad")
	for _, address := range []string{brackets(gateway6, "9092"), brackets(otherIP6, "8080")} {
		p.dropped("ip6 saddr fd10:0:2::3", func() {
			if conn, _, err := p.dial6(p.guest, address, &net.TCPAddr{IP: net.ParseIP("fd10:0:2::3")}, inVain); err == nil {
				conn.Close()
				t.Errorf("reached %s from a false address", address)
			}
		})
	}
	p.run(p.guest, nil, "ip", "addr", "del", "fd10:0:2::3/128", "dev", guestLink)
	// By link-local addresses: the pod's services are not there.
	p.dropped("ip6 daddr "+router6+" tcp dport 9092", func() { p.fail6(p.guest, "["+router6+"%"+guestLink+"]:9092") })
	// As a router.
	advertisement, err := ipv6.Advertisement(p.plan.Lease6())
	if err != nil {
		t.Fatal(err)
	}
	before := p.run(p.pod, nil, "ip", "-6", "route")
	for _, from := range []string{linkLocal, router6, guestIP6} {
		p.dropped("icmpv6 type nd-router-advert", func() { p.sendICMP(from, "ff02::1", advertisement) })
	}
	redirect := append([]byte{icmpRedirect, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 32)...)
	p.dropped("icmpv6 type nd-redirect", func() { p.sendICMP(linkLocal, router6, redirect) })
	if after := p.run(p.pod, nil, "ip", "-6", "route"); after != before {
		t.Errorf("routes before:\n%s\nafter:\n%s", before, after)
	}
	// As the router's neighbour, and as others'.
	for _, target := range []string{router6, gateway6, podIP6, otherIP6} {
		// The guest's kernel may answer the pod's meanwhile, and not to everybody.
		p.dropped("ip6 daddr ff02::1 icmpv6 type nd-neighbor-advert", func() { p.sendICMP(linkLocal, "ff02::1", neighbour(target)) })
	}
	p.comes6(p.pod, "input", "icmpv6 type nd-neighbor-advert", func() { p.sendICMP(guestIP6, router6, neighbour(guestIP6)) })
	// As a DHCPv6 server.
	p.dropped("udp dport 546", func() {
		p.inside(p.guest, func() error {
			conn, err := net.DialUDP("udp6", &net.UDPAddr{IP: net.ParseIP(linkLocal), Zone: guestLink, Port: 547}, &net.UDPAddr{IP: net.ParseIP("ff02::1"), Zone: guestLink, Port: 546})
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("hello"))
			return err
		})
	})
	p.reach6(p.guest, brackets(otherIP6, "8080"), podIP6) // the wire still works
}

// TestGuestFillsNoNeighbourTable: the kernel has one table of neighbours for all pods of a node.
func TestGuestFillsNoNeighbourTable(t *testing.T) {
	p := newPod6(t, Masquerade{Network6: netip.MustParsePrefix("fd10:0:2::/64")}, false, podMTU)
	p.start6()
	neighbours := func() int {
		return strings.Count(p.run(p.pod, nil, "ip", "-6", "neigh", "show", "dev", "k6t-eth0", "nud", "all"), "\n")
	}
	before := neighbours()
	begin := time.Now()
	for i := range 400 {
		to := netip.MustParseAddr(router6).As16()
		solicitation := append([]byte{icmpNeighborSolicitation, 0, 0, 0, 0, 0, 0, 0}, to[:]...)
		solicitation = append(solicitation, 1, 1, 0x52, 0x54, 0, 1, byte(i>>8), byte(i))
		p.sendICMP(fmt.Sprintf("fe80::bad:%x", i+1), "ff02::1:ff00:1", solicitation)
	}
	allowed := linkLocalRate * (2 + int(time.Since(begin)/time.Second))
	if n := neighbours() - before; n > allowed {
		t.Errorf("%d neighbours of 400 link-local addresses, want at most %d", n, allowed)
	} else {
		t.Logf("%d neighbours of 400 addresses after %v", n, time.Since(begin))
	}
	// Addresses of the private network that nobody has: the pod looks for none of them.
	p.run(p.guest, nil, "ip", "route", "add", "fd10:0:2::/64", "via", router6, "dev", guestLink, "metric", "1")
	p.dropped("ip6 daddr fd10:0:2::1:0/112 udp dport 9", func() {
		for i := range 100 {
			p.inside(p.guest, func() error {
				conn, err := net.Dial("udp6", fmt.Sprintf("[fd10:0:2::1:%x]:9", i+1))
				if err != nil {
					return err
				}
				defer conn.Close()
				_, err = conn.Write([]byte("hello"))
				return err
			})
		}
	})
	if found := p.run(p.pod, nil, "ip", "-6", "neigh", "show", "dev", "k6t-eth0", "nud", "all"); strings.Contains(found, "fd10:0:2::1:") {
		t.Errorf("the pod looks for neighbours:\n%s", found)
	}
}

// staysInside wants an attempt's packets to come to the pod, and not to leave it.
func (p *pod) staysInside(match string, attempt func()) {
	p.t.Helper()
	p.run(p.pod, nil, "nft", fmt.Sprintf("add table ip6 after; add chain ip6 after c { type filter hook postrouting priority -250; }; add rule ip6 after c %s counter", match))
	defer p.run(p.pod, nil, "nft", "delete", "table", "ip6", "after")
	p.comes6(p.pod, "prerouting", match, attempt)
	if seen := p.run(p.pod, nil, "nft", "list", "table", "ip6", "after"); !strings.Contains(seen, "packets 0 ") {
		p.t.Errorf("packets with %s leave the pod:\n%s", match, seen)
	}
}

// TestHostileNeighbourByIPv6 has another pod route past the list of ports, and through the pod.
func TestHostileNeighbourByIPv6(t *testing.T) {
	p := newPod6(t, Masquerade{Ports: []Port{{"TCP", 80}}}, true, podMTU)
	p.start6()
	p.serveTCP6(p.guest, "[::]:80")
	p.serveTCP6(p.guest, "[::]:81")
	p.run(p.other, nil, "ip", "route", "add", "fd10:0:2::/120", "via", podIP6)
	for _, port := range []string{"80", "81"} {
		p.staysInside("ip6 daddr "+guestIP6+" tcp dport "+port, func() { p.fail6(p.other, brackets(guestIP6, port)) })
	}
	// Through the pod to a third.
	p.run(p.other, nil, "ip", "route", "add", "2001:db8::/64", "via", podIP6)
	p.staysInside("ip6 daddr 2001:db8::1", func() { p.fail6(p.other, "[2001:db8::1]:80") })
	p.reach6(p.other, brackets(podIP6, "80"), otherIP6)
}

// TestNoIPv4OfOtherGuestsInIPv6OnlyPod: a guest that gives itself the IPv4 address of other pods' guests.
func TestNoIPv4OfOtherGuestsInIPv6OnlyPod(t *testing.T) {
	p := newPod6(t, Masquerade{}, false, podMTU)
	if p.plan.Serves() {
		t.Error("DHCP without IPv4")
	}
	p.start6()
	p.run(p.pod, nil, "ip", "addr", "add", "192.0.2.1/24", "dev", "lo") // as of a network beside the pod's
	p.serveTCP(p.pod, ":9092")
	p.run(p.guest, nil, "ip", "addr", "add", guestIP+"/24", "dev", guestLink)
	p.run(p.guest, nil, "ip", "route", "add", "192.0.2.1", "dev", guestLink)
	p.comes(p.pod, packets("ip daddr 192.0.2.1"), func() { p.fail(p.guest, "192.0.2.1:9092") })
}
