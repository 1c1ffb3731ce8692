package dhcp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

func TestMain(m *testing.M) { golden.Main(m, "testdata/*.golden") }

const guestMAC = "52:54:00:12:34:56"

func masqueradeLease() Lease {
	return Lease{
		ClientMAC: guestMAC, ClientIP: netip.MustParsePrefix("10.0.2.2/24"),
		ServerIP: netip.MustParseAddr("10.0.2.1"), Router: netip.MustParseAddr("10.0.2.1"),
		DNS:           []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		SearchDomains: []string{"default.svc.cluster.local", "svc.cluster.local", "cluster.local"},
		Hostname:      "testvm", MTU: 1450,
	}
}

// calicoLease is what the bridge binding has on a CNI with host routes.
func calicoLease() Lease {
	l := masqueradeLease()
	l.ClientIP = netip.MustParsePrefix("192.168.7.9/32")
	l.ServerIP = netip.MustParseAddr("169.254.75.10")
	l.Router = netip.MustParseAddr("169.254.1.1")
	return l
}

func routedLease() Lease {
	l := masqueradeLease()
	l.Routes = []Route{
		{Destination: netip.MustParsePrefix("172.16.0.0/12"), Gateway: netip.MustParseAddr("10.0.2.9")},
		{Destination: netip.MustParsePrefix("192.0.2.128/25")},
	}
	return l
}

// bootingLease has what dhcpOptions of an interface may ask for, and a network of
// the bridge binding where neighbours are reached over the host.
func bootingLease() Lease {
	l := masqueradeLease()
	l.ClientIP, l.ServerIP = netip.MustParsePrefix("10.88.0.5/32"), netip.MustParseAddr("169.254.75.10")
	l.Router = netip.MustParseAddr("10.88.0.1")
	l.Routes = []Route{{Destination: netip.MustParsePrefix("10.88.0.1/32")}, {netip.MustParsePrefix("10.88.0.0/24"), l.Router}}
	l.NTP = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	l.TFTPServer, l.BootFile = "tftp.example.com", "pxelinux.0"
	l.Private = []Option{{224, "first"}, {254, strings.Repeat("x", 255)}}
	return l
}

func searchingLease() Lease {
	l := masqueradeLease()
	for i := range 24 {
		l.SearchDomains = append(l.SearchDomains, fmt.Sprintf("zone%02d.corporate.example.com.", i))
	}
	return l
}

func request(kind dhcpv4.MessageType, modifiers ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	mac, _ := net.ParseMAC(guestMAC)
	modifiers = append([]dhcpv4.Modifier{
		dhcpv4.WithHwAddr(mac), dhcpv4.WithTransactionID(dhcpv4.TransactionID{1, 2, 3, 4}),
		dhcpv4.WithMessageType(kind),
	}, modifiers...)
	m, err := dhcpv4.New(modifiers...)
	if err != nil {
		panic(err)
	}
	return m
}

func asking(ip string) dhcpv4.Modifier {
	return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.ParseIP(ip)))
}

func from(server string) dhcpv4.Modifier {
	return dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.ParseIP(server)))
}

func TestReplyGolden(t *testing.T) {
	const discover, req, inform = dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeInform
	own := dhcpv4.WithClientIP(net.ParseIP("10.0.2.2"))
	for name, c := range map[string]struct {
		lease   Lease
		request *dhcpv4.DHCPv4
	}{
		"discover":           {masqueradeLease(), request(discover)},
		"discover-client-id": {masqueradeLease(), request(discover, dhcpv4.WithOption(dhcpv4.OptClientIdentifier([]byte{1, 2, 3})))},
		"discover-stale":     {masqueradeLease(), request(discover, asking("192.168.1.77"))},
		"discover-calico":    {calicoLease(), request(discover)},
		"discover-routes":    {routedLease(), request(discover)},
		"discover-options":   {bootingLease(), request(discover)},
		"discover-search":    {searchingLease(), request(discover)},
		"discover-search-large": {searchingLease(),
			request(discover, dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(1500)))},
		"request-selecting":        {masqueradeLease(), request(req, from("10.0.2.1"), asking("10.0.2.2"))},
		"request-init-reboot":      {masqueradeLease(), request(req, asking("10.0.2.2"))},
		"request-stale-selecting":  {masqueradeLease(), request(req, from("10.0.2.1"), asking("192.168.1.77"))},
		"request-stale-rebooting":  {masqueradeLease(), request(req, asking("192.168.1.77"))},
		"request-stale-renewing":   {masqueradeLease(), request(req, dhcpv4.WithClientIP(net.ParseIP("192.168.1.77")))},
		"request-nothing":          {masqueradeLease(), request(req)},
		"request-other-server":     {masqueradeLease(), request(req, from("10.0.2.9"), asking("10.0.2.2"))},
		"request-renewing":         {masqueradeLease(), request(req, own)},
		"request-rebind-broadcast": {masqueradeLease(), request(req, own, dhcpv4.WithBroadcast(true))},
		"inform":                   {masqueradeLease(), request(inform, own)},
		"inform-other-address":     {masqueradeLease(), request(inform, dhcpv4.WithClientIP(net.ParseIP("8.8.8.8")))},
		"release":                  {masqueradeLease(), request(dhcpv4.MessageTypeRelease, own)},
		"decline":                  {masqueradeLease(), request(dhcpv4.MessageTypeDecline, asking("10.0.2.2"))},
		"discover-other-mac":       {masqueradeLease(), request(discover, dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, 9}))},
	} {
		t.Run(name, func(t *testing.T) {
			reply, err := Reply(c.lease, c.request)
			if err != nil {
				t.Fatal(err)
			}
			got := "no reply\n"
			if reply != nil {
				// Through the wire format, as the client would read it.
				read, err := dhcpv4.FromBytes(reply.ToBytes())
				if err != nil {
					t.Fatal(err)
				}
				got = fmt.Sprintf("to %s, %d octets\n%s", Destination(c.lease, reply), len(reply.ToBytes()), read.Summary())
			}
			golden.Compare(t, "testdata/"+name+".golden", got)
		})
	}
}

func TestReplyRefusesMalformed(t *testing.T) {
	for name, spoil := range map[string]func(*dhcpv4.DHCPv4){
		"a reply":       func(m *dhcpv4.DHCPv4) { m.OpCode = dhcpv4.OpcodeBootReply },
		"relayed":       func(m *dhcpv4.DHCPv4) { m.GatewayIPAddr = net.IPv4(10, 0, 2, 9) },
		"not Ethernet":  func(m *dhcpv4.DHCPv4) { m.HWType = 6 },
		"no type":       func(m *dhcpv4.DHCPv4) { m.DeleteOption(dhcpv4.OptionDHCPMessageType) },
		"a server type": func(m *dhcpv4.DHCPv4) { m.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeOffer)) },
	} {
		m := request(dhcpv4.MessageTypeDiscover)
		spoil(m)
		if reply, err := Reply(masqueradeLease(), m); reply != nil || !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got reply %v, error %v", name, reply, err)
		}
	}
}

func TestLeaseCheck(t *testing.T) {
	if err := masqueradeLease().Check(); err != nil {
		t.Fatal(err)
	}
	six := netip.MustParseAddr("fd10::1")
	for name, spoil := range map[string]func(*Lease){
		"MAC":            func(l *Lease) { l.ClientMAC = "52:54" },
		"EUI-64":         func(l *Lease) { l.ClientMAC = "52:54:00:12:34:56:78:9a" },
		"no client":      func(l *Lease) { l.ClientIP = netip.Prefix{} },
		"no server":      func(l *Lease) { l.ServerIP = netip.Addr{} },
		"IPv6 router":    func(l *Lease) { l.Router = six },
		"IPv6 DNS":       func(l *Lease) { l.DNS = []netip.Addr{six} },
		"no DNS address": func(l *Lease) { l.DNS = []netip.Addr{{}} },
		"no destination": func(l *Lease) { l.Routes = []Route{{}} },
		"IPv6 gateway":   func(l *Lease) { l.Routes = []Route{{l.ClientIP, six}} },
		"empty domain":   func(l *Lease) { l.SearchDomains = []string{""} },
		"long label":     func(l *Lease) { l.SearchDomains = []string{strings.Repeat("a", 64) + ".local"} },
		"long hostname":  func(l *Lease) { l.Hostname = strings.Repeat("a", 256) },
		"long TFTP":      func(l *Lease) { l.TFTPServer = strings.Repeat("a", 256) },
		"long boot file": func(l *Lease) { l.BootFile = strings.Repeat("a", 256) },
		"IPv6 NTP":       func(l *Lease) { l.NTP = []netip.Addr{six} },
		"option below":   func(l *Lease) { l.Private = []Option{{223, "x"}} },
		"option above":   func(l *Lease) { l.Private = []Option{{255, "x"}} },
		"option twice":   func(l *Lease) { l.Private = []Option{{230, "x"}, {230, "y"}} },
		"empty option":   func(l *Lease) { l.Private = []Option{{230, ""}} },
		"long option":    func(l *Lease) { l.Private = []Option{{230, strings.Repeat("a", 256)}} },
		"too much": func(l *Lease) {
			for i := range 5 {
				l.Private = append(l.Private, Option{uint8(230 + i), strings.Repeat("a", 255)})
			}
		},
		"small MTU": func(l *Lease) { l.MTU = 67 },
	} {
		l := masqueradeLease()
		spoil(&l)
		if err := l.Check(); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if reply, err := Reply(l, request(dhcpv4.MessageTypeDiscover)); err == nil {
			t.Errorf("%s: replied %v", name, reply)
		}
	}
}

// FuzzReply feeds what a hostile guest could send.
func FuzzReply(f *testing.F) {
	f.Add(request(dhcpv4.MessageTypeDiscover).ToBytes())
	f.Add(request(dhcpv4.MessageTypeRequest, asking("10.0.2.2"), from("10.0.2.1")).ToBytes())
	f.Add(request(dhcpv4.MessageTypeInform, dhcpv4.WithClientIP(net.IPv4(10, 0, 2, 2)),
		dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(65535))).ToBytes())
	leases := []Lease{searchingLease(), calicoLease(), bootingLease()}
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) > maxPacket {
			return
		}
		for _, lease := range leases {
			fuzzReply(t, lease, packet)
		}
	})
}

func fuzzReply(t *testing.T, lease Lease, packet []byte) {
	m, err := dhcpv4.FromBytes(packet)
	if err != nil {
		return
	}
	reply, err := Reply(lease, m)
	if reply == nil {
		return
	}
	if err != nil {
		t.Fatalf("reply and error %v", err)
	}
	out := reply.ToBytes()
	if len(out) > maxPacket {
		t.Fatalf("reply of %d octets", len(out))
	}
	if to := Destination(lease, reply); to.Addr() != lease.ClientIP.Addr() && to.Addr().String() != "255.255.255.255" {
		t.Fatalf("reply to %s", to)
	}
	if _, err := dhcpv4.FromBytes(out); err != nil {
		t.Fatalf("reply cannot be read: %v", err)
	}
	if yours := reply.YourIPAddr; !yours.IsUnspecified() && yours.String() != lease.ClientIP.Addr().String() {
		t.Fatalf("offered %s", yours)
	}
}

// FuzzLease: what Check lets pass can be told, and is read as it was meant.
func FuzzLease(f *testing.F) {
	f.Add("testvm", "default.svc.cluster.local", "tftp.example.com", "pxelinux.0", uint8(224), "x", uint8(24), []byte{10, 88, 0, 1, 32, 10, 88, 0, 0, 24})
	f.Add("", "a..b", "", strings.Repeat("f", 255), uint8(255), strings.Repeat("x", 255), uint8(33), bytes.Repeat([]byte{10, 0, 0, 0, 8}, 200))
	f.Fuzz(func(t *testing.T, hostname, domain, tftp, boot string, code uint8, value string, bits uint8, routes []byte) {
		l := masqueradeLease()
		l.Hostname, l.SearchDomains, l.TFTPServer, l.BootFile = hostname, []string{domain}, tftp, boot
		l.Private = []Option{{code, value}}
		l.ClientIP = netip.PrefixFrom(l.ClientIP.Addr(), int(bits))
		for ; len(routes) >= 5; routes = routes[5:] {
			destination := netip.PrefixFrom(netip.AddrFrom4([4]byte(routes)), int(routes[4]))
			l.Routes = append(l.Routes, Route{destination, l.Router})
		}
		reply, err := Reply(l, request(dhcpv4.MessageTypeDiscover))
		if checked := l.Check(); (checked == nil) != (err == nil) {
			t.Fatalf("Check says %v, Reply %v", checked, err)
		}
		if err != nil {
			return
		}
		read, err := dhcpv4.FromBytes(reply.ToBytes())
		if err != nil {
			t.Fatalf("reply cannot be read: %v", err)
		}
		mask, _ := read.SubnetMask().Size()
		if mask != int(bits) || read.HostName() != hostname || read.BootFileNameOption() != boot || string(read.Options.Get(dhcpv4.GenericOptionCode(code))) != value {
			t.Fatalf("%+v is told as\n%s", l, read.Summary())
		}
		if n := len(l.Routes); n > 0 && len(read.ClasslessStaticRoute()) < n {
			t.Fatalf("%d routes are told as %v", n, read.ClasslessStaticRoute())
		}
	})
}
