package sidecar

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
)

func TestOutboundArgumentsOfPasst(t *testing.T) {
	out4, out6 := "--outbound-if4=eth0", "--outbound-if6=eth0"
	for name, c := range map[string]struct {
		addresses []string
		guest     string
		want      []string
	}{
		"none":             {nil, "", nil},
		"IPv6 link-local":  {[]string{"fe80::1/64"}, "", nil},
		"IPv4":             {[]string{"fe80::1/64", "10.9.0.2/24"}, "", []string{out4, "--ipv4-only"}},
		"IPv6":             {[]string{"fd09::2/64", "fe80::1/64"}, "", []string{out4, "--address=169.254.75.11", "--no-dhcp", out6}},
		"IPv4 and IPv6":    {[]string{"10.9.0.2/24", "fd09::2/64"}, "", []string{out4, out6}},
		"IPv4 link-local":  {[]string{"169.254.3.4/16"}, "", []string{out4, "--ipv4-only"}},
		"IPv4, from a pod": {[]string{"10.9.0.2/24", "10.9.0.3/32"}, "10.8.0.7", []string{out4, "--address=10.8.0.7", "--netmask=24", "--ipv4-only"}},
		"both, from a pod": {[]string{"fd09::2/64", "10.9.0.2/32"}, "10.8.0.7", []string{out4, "--address=10.8.0.7", "--netmask=32", out6}},
		"IPv6, from a pod": {[]string{"fd09::2/64"}, "10.8.0.7", []string{out4, "--address=169.254.75.11", "--no-dhcp", out6}},
	} {
		t.Run(name, func(t *testing.T) {
			guest, _ := netip.ParseAddr(c.guest)
			got, err := Outbound("eth0", parsed(c.addresses), guest)
			if diff := cmp.Diff(c.want, got); diff != "" || errors.Is(err, ErrNoAddress) != (c.want == nil) {
				t.Errorf("%v: %s", err, diff)
			}
		})
	}
}

func parsed(addresses []string) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addresses {
		out = append(out, netip.MustParsePrefix(a))
	}
	return out
}

// nobody is a user that has no other processes. passt does not run as root.
const nobody = 54107

// TestOutboundPasst: the passt of the image sends what a guest sends to a peer, and nothing to the pod's loopback, also
// where the guest writes the loopback's IPv4 address as one of IPv6.
func TestOutboundPasst(t *testing.T) {
	command := launchertest.Passt(t, "../../_output/cache/launcher-root")
	for name, c := range map[string]struct {
		addresses []string
		guest     string
		peer      string
	}{
		"IPv4":             {[]string{"10.9.0.2/24"}, "", "10.9.0.1"},
		"IPv6":             {[]string{"fd09::2/64"}, "", "fd09::1"},
		"IPv4 and IPv6":    {[]string{"10.9.0.2/24", "fd09::2/64"}, "", "10.9.0.1"},
		"IPv4, from a pod": {[]string{"10.9.0.2/24"}, "10.8.0.7", "10.9.0.1"},
		"both, from a pod": {[]string{"10.9.0.2/24", "fd09::2/64"}, "10.8.0.7", "10.9.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread() // for good: the thread ends with this test, and so does its network namespace
			seen := pod(t, parsed(c.addresses))
			service, err := net.ListenPacket("udp4", "127.0.0.1:9001")
			if err != nil {
				t.Fatal(err)
			}
			defer service.Close()
			came, _ := netip.ParseAddr(c.guest)
			guest := connected(t, command, parsed(c.addresses), came)
			source4, source6 := netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("fd09::99")
			for _, to := range []string{"::ffff:127.0.0.1", "127.0.0.1", c.peer} {
				text := "stolen"
				if to == c.peer {
					text = "control"
				}
				if to := netip.MustParseAddr(to); to.Is4() {
					send(t, guest, unix.ETH_P_IP, datagram4(source4, to, 9001, text))
				} else {
					send(t, guest, unix.ETH_P_IPV6, datagram6(source6, to, 9001, text))
				}
			}
			awaitPacket(t, seen, "control")
			service.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if n, from, err := service.ReadFrom(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the pod's loopback got %d bytes from %v (%v)", n, from, err)
			}
		})
	}
}

// pod makes the thread's network namespace that of a pod with the interface eth0, and returns a socket that gets all
// that leaves by eth0.
func pod(t *testing.T, addresses []netip.Prefix) int {
	t.Helper()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNET), netlink.LinkAdd(link)); err != nil {
		t.Fatalf("make a network namespace (run the test as root): %v", err)
	}
	links := map[string]netlink.Link{}
	for _, name := range []string{"lo", "eth0", "peer"} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			t.Fatal(err)
		}
		links[name] = l
	}
	eth0, peer := links["eth0"].Attrs().Index, links["peer"].Attrs()
	for _, a := range addresses {
		gateway := netip.MustParseAddr("10.9.0.1")
		if a.Addr().Is6() {
			gateway = netip.MustParseAddr("fd09::1")
		}
		err := netlink.AddrAdd(links["eth0"], &netlink.Addr{IPNet: &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}, Flags: unix.IFA_F_NODAD})
		err = errors.Join(err, netlink.RouteAdd(&netlink.Route{LinkIndex: eth0, Gw: gateway.AsSlice()}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: eth0, IP: gateway.AsSlice(), HardwareAddr: peer.HardwareAddr, State: netlink.NUD_PERMANENT}))
		if err != nil {
			t.Fatal(err)
		}
	}
	if slices.ContainsFunc(addresses, func(a netip.Prefix) bool { return a.Addr().Is6() }) {
		awaitLinkLocal(t, links["eth0"])
	}
	all := int(uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8)
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
	if err == nil {
		err = unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: peer.Index})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(socket) })
	return socket
}

// awaitLinkLocal waits for the link's link-local address. A worker of the kernel adds it some time after the link is
// up. Without it, passt that is to send IPv6 ends with "External interface not usable". A CNI plugin makes a pod's link
// long before passt starts.
func awaitLinkLocal(t *testing.T, link netlink.Link) {
	t.Helper()
	testkit.Eventually(t, "the pod's interface has a link-local address", func() error {
		addresses, err := netlink.AddrList(link, netlink.FAMILY_V6)
		if err == nil && !slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return a.IP.IsLinkLocalUnicast() }) {
			err = errors.New("it has none")
		}
		return err
	})
}

// connected starts passt in the thread's network namespace, and is the connection that QEMU would have.
func connected(t *testing.T, command []string, addresses []netip.Prefix, came netip.Addr) net.Conn {
	t.Helper()
	folder, err := os.MkdirTemp("", "passt")
	if err == nil {
		t.Cleanup(func() { os.RemoveAll(folder) })
		err = os.Chown(folder, nobody, nobody)
	}
	options, optionsErr := Outbound("eth0", addresses, came)
	if err := errors.Join(err, optionsErr); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(folder, "socket")
	args := slices.Concat(command[1:], []string{"--foreground", "--socket=" + socket, "--interface=eth0", "--no-map-gw", "--tcp-ports=none", "--udp-ports=none"}, options)
	passt := exec.Command(command[0], args...)
	var said bytes.Buffer
	passt.Stderr = &said
	passt.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
	if err := passt.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cancel(fmt.Errorf("passt ended: %w", passt.Wait()))
	}()
	t.Cleanup(func() {
		passt.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("passt: %s", &said)
		}
	})
	conn, err := Connect(ctx, socket)
	if err != nil {
		t.Fatalf("%v (%v)", err, context.Cause(ctx))
	}
	defer conn.Close()
	guest, err := net.FileConn(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { guest.Close() })
	go io.Copy(io.Discard, guest) // what passt asks the guest
	return guest
}

// send sends an Ethernet frame as QEMU's stream does: with its length before it.
func send(t *testing.T, guest net.Conn, kind uint16, packet []byte) {
	t.Helper()
	frame := slices.Concat([]byte{0x9a, 0x55, 0x9a, 0x55, 0x9a, 0x55}, []byte{0x52, 0x54, 0, 0x11, 0x22, 0x33}, binary.BigEndian.AppendUint16(nil, kind), packet)
	if _, err := guest.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)); err != nil {
		t.Fatal(err)
	}
}

func datagram4(from, to netip.Addr, port uint16, text string) []byte {
	body := udp(from, to, port, text)
	header := []byte{0x45, 0, 0, byte(20 + len(body)), 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	header = slices.Concat(header, from.AsSlice(), to.AsSlice())
	binary.BigEndian.PutUint16(header[10:], sum(header))
	return append(header, body...)
}

func datagram6(from, to netip.Addr, port uint16, text string) []byte {
	body := udp(from, to, port, text)
	return slices.Concat([]byte{0x60, 0, 0, 0, 0, byte(len(body)), unix.IPPROTO_UDP, 64}, from.AsSlice(), to.AsSlice(), body)
}

func udp(from, to netip.Addr, port uint16, text string) []byte {
	b := binary.BigEndian.AppendUint16(nil, 40000)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(text)))
	b = append(append(b, 0, 0), text...)
	binary.BigEndian.PutUint16(b[6:], sum(slices.Concat(from.AsSlice(), to.AsSlice(), []byte{0, unix.IPPROTO_UDP, 0, byte(len(b))}, b)))
	return b
}

// sum returns the Internet checksum (RFC 1071).
func sum(b []byte) uint16 {
	total := uint32(0)
	for i, c := range b {
		total += uint32(c) << (8 * (1 - i%2))
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return ^uint16(total)
}

// awaitPacket waits for a packet with the text.
func awaitPacket(t *testing.T, socket int, text string) {
	t.Helper()
	deadline, buffer := time.Now().Add(testkit.Patience), make([]byte, 4096)
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		t.Fatal(err)
	}
	for time.Now().Before(deadline) {
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if err == nil && bytes.Contains(buffer[:n], []byte(text)) {
			return
		}
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
	t.Fatalf("no packet with %q has left the pod", text)
}
