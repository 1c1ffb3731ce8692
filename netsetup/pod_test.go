package netsetup

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
)

const (
	podIP   = "10.244.0.5"
	otherIP = "10.244.0.6"
	guestIP = "10.0.2.2"
	podMTU  = 1450

	guestLink = "ens1"
	guestMAC  = "52:54:00:12:34:56"
)

// pod is a pod's network namespace beside another's, as a CNI plugin makes them,
// and a third one that stands for the guest. They have no name and no mount: they
// go when their descriptors do.
type pod struct {
	t                 *testing.T
	pod, other, guest ns.NetNS
	node              ns.NetNS // where the CNI plugin works, for the bridge binding
	leases            string   // the plugin's folder
	mtu               int
	facts             Facts
	plan              *Plan
	guestMAC          string
	leaseSeconds      uint32 // 0: the server's own
	watched           int    // how often watch was called
}

func newPod(t *testing.T, m Masquerade) *pod {
	t.Helper()
	return newPodOfMTU(t, m, podMTU)
}

func newPodOfMTU(t *testing.T, m Masquerade, mtu int) *pod {
	t.Helper()
	t.Parallel() // nothing is shared, and what must fail takes its time
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	p := &pod{t: t, pod: newNetNS(t), other: newNetNS(t), guest: newNetNS(t), guestMAC: guestMAC}
	p.inside(p.other, func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(p.pod.Fd())}
		veth.Name, veth.MTU = "eth0", mtu
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return configureLink("eth0", otherIP+"/24", mtu)
	})
	p.inside(p.pod, func() error {
		if err := configureLink("eth0", podIP+"/24", mtu); err != nil {
			return err
		}
		// A default route, as every pod has it; nothing is behind it.
		return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("10.244.0.1")})
	})
	p.inside(p.guest, func() error { return configureLink("lo", "", 65536) })
	var err error
	if p.facts, err = ReadFacts(p.pod, "eth0"); err != nil {
		t.Fatal(err)
	}
	if p.plan, err = PlanMasquerade(p.facts, m); err != nil {
		t.Fatal(err)
	}
	return p
}

func newNetNS(t *testing.T) ns.NetNS {
	t.Helper()
	netns, err := ns.TempNetNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Close() })
	return netns
}

// configureLink also brings lo up, without which a namespace cannot reach itself.
func configureLink(name, address string, mtu int) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if address != "" {
		addr, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetMTU(link, mtu); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func (p *pod) inside(netns ns.NetNS, do func() error) {
	p.t.Helper()
	if err := netns.Do(func(ns.NetNS) error { return do() }); err != nil {
		p.t.Fatal(err)
	}
}

// start applies the plan, opens the tap, and connects a guest that takes its
// address by DHCP. It returns what the guest's DHCP client was told.
func (p *pod) start() map[string]string {
	p.t.Helper()
	if err := Apply(p.pod, p.plan); err != nil {
		p.t.Fatal(err)
	}
	queues, err := OpenTap(p.pod, p.plan)
	if err != nil {
		p.t.Fatal(err)
	}
	p.connectGuest(queues)
	p.serveDHCP()
	return p.runDHCPClient()
}

// connectGuest stands for QEMU: it carries frames, with their virtio-net headers,
// between the pod's tap, all queues of it, and one that is the guest's only link.
func (p *pod) connectGuest(queues []*os.File) {
	var guestTap *os.File
	p.inside(p.guest, func() (err error) {
		guestTap, err = openQueue(guestLink, unix.IFF_TAP|unix.IFF_NO_PI|unix.IFF_VNET_HDR)
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName(guestLink)
		if err != nil {
			return err
		}
		mac, _ := net.ParseMAC(p.guestMAC)
		if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
	done := make(chan struct{}, 1+len(queues))
	carry := func(to, from *os.File) {
		defer func() { done <- struct{}{} }()
		frame := make([]byte, 1<<17)
		for {
			n, err := from.Read(frame)
			if err != nil {
				return
			}
			to.Write(frame[:n]) // a frame that cannot be delivered is lost, as on any wire
		}
	}
	for _, queue := range queues {
		go carry(guestTap, queue)
	}
	go carry(queues[len(queues)-1], guestTap)
	p.t.Cleanup(func() {
		for _, f := range append(queues, guestTap) {
			f.Close()
		}
		for range cap(done) {
			<-done
		}
	})
}

func (p *pod) serveDHCP() {
	p.t.Helper()
	f, err := ListenDHCP(p.pod, p.plan)
	if err != nil {
		p.t.Fatal(err)
	}
	conn, err := net.FilePacketConn(f)
	f.Close()
	if err != nil {
		p.t.Fatal(err)
	}
	lease := p.plan.Lease(p.guestMAC)
	lease.DNS = []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	lease.SearchDomains = []string{"default.svc.cluster.local", "svc.cluster.local"}
	lease.Hostname, lease.Seconds = "testvm", p.leaseSeconds
	server := dhcp.Serve(conn, lease, slog.New(slog.NewTextHandler(io.Discard, nil)))
	p.t.Cleanup(func() { server.Close() })
}

// dhcpScript is what udhcpc calls with its lease in the environment.
const dhcpScript = `#!/bin/busybox sh
[ "$1" = bound ] || exit 0
busybox ip addr flush dev "$interface"
busybox ip addr add "$ip/$mask" dev "$interface"
busybox ip link set "$interface" mtu "$mtu"
if [ -n "$staticroutes" ]; then
	set -- $staticroutes
	while [ $# -gt 0 ]; do
		if [ "$2" = 0.0.0.0 ]; then busybox ip route add "$1" dev "$interface"; else busybox ip route add "$1" via "$2"; fi
		shift 2
	done
elif [ -n "$router" ]; then
	busybox ip route add default via "$router"
fi
busybox env > "$LEASE"
`

func (p *pod) runDHCPClient() map[string]string {
	p.t.Helper()
	dir := p.t.TempDir()
	script, lease := filepath.Join(dir, "script"), filepath.Join(dir, "lease")
	testkit.Program(p.t, script, []byte(dhcpScript))
	var text []byte
	// The client gives up after three messages without an answer.
	testkit.Slower(p.t, 8*time.Second, func(patience time.Duration) error {
		out, err := p.command(p.guest, []string{"LEASE=" + lease}, "busybox", "udhcpc", "-i", guestLink, "-s", script,
			"-f", "-q", "-n", "-t", "3", "-T", fmt.Sprint(int(patience.Seconds())/4), "-O", "mtu", "-O", "search", "-O", "serverid", "-O", "staticroutes")
		if err == nil {
			text, err = os.ReadFile(lease)
		}
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	told := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		told[name] = value
	}
	return told
}

// run runs a program to its end within a namespace, and fails the test if the program fails.
func (p *pod) run(netns ns.NetNS, env []string, name string, args ...string) string {
	p.t.Helper()
	out, err := p.command(netns, env, name, args...)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// command runs a program to its end within a namespace, which it inherits from the
// thread that starts it, and returns what the program wrote.
func (p *pod) command(netns ns.NetNS, env []string, name string, args ...string) (string, error) {
	p.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := os.CreateTemp(p.t.TempDir(), "out")
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	p.inside(netns, cmd.Start)
	err = cmd.Wait()
	text, _ := os.ReadFile(out.Name())
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return string(text), err
}

// serveTCP answers each connection with whose address it came from, then echoes.
func (p *pod) serveTCP(netns ns.NetNS, address string) { p.serveTCPBy(netns, "tcp4", address) }

func (p *pod) serveTCPBy(netns ns.NetNS, network, address string) {
	p.t.Helper()
	var listener net.Listener
	p.inside(netns, func() (err error) {
		listener, err = net.Listen(network, address)
		return err
	})
	p.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				fmt.Fprintf(conn, "%s\n", conn.RemoteAddr().(*net.TCPAddr).IP)
				io.Copy(conn, conn)
			}()
		}
	}()
}

// dial connects within a namespace and returns the connection and the address
// that the server saw.
func (p *pod) dial(netns ns.NetNS, address string) (net.Conn, string, error) {
	p.t.Helper()
	return p.dialWithin(netns, address, testkit.Patience)
}

// inVain is how long an attempt takes that must come to nothing.
const inVain = 2 * time.Second

func (p *pod) dialWithin(netns ns.NetNS, address string, patience time.Duration) (net.Conn, string, error) {
	p.t.Helper()
	var conn net.Conn
	err := netns.Do(func(ns.NetNS) (err error) {
		conn, err = net.DialTimeout("tcp4", address, patience)
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

func readLine(r io.Reader) (string, error) {
	var line []byte
	b := make([]byte, 1)
	for {
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
		line = append(line, b[0])
	}
}

func (p *pod) reach(netns ns.NetNS, address, wantSeen string) net.Conn {
	p.t.Helper()
	conn, seen, err := p.dial(netns, address)
	if err != nil {
		p.t.Fatalf("reach %s: %v", address, err)
	}
	if seen != wantSeen {
		p.t.Errorf("the server at %s saw %s, want %s", address, seen, wantSeen)
	}
	return conn
}

// fail wants no connection, and returns the error.
func (p *pod) fail(netns ns.NetNS, address string) error {
	p.t.Helper()
	_, seen, err := p.dialWithin(netns, address, inVain)
	if err == nil {
		p.t.Errorf("reached %s as %s", address, seen)
	}
	return err
}
