package ipv6

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/mdlayher/ndp"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

func TestMain(m *testing.M) { golden.Main(m, "testdata/*.golden") }

func lease() Lease {
	return Lease{
		Guest: netip.MustParsePrefix("fd10:0:2::2/120"), Router: netip.MustParseAddr("fe80::1"), RouterMAC: "02:00:00:00:00:00", MTU: 1450,
		DNS: []netip.Addr{netip.MustParseAddr("fd00:10:96::a")}, SearchDomains: []string{"default.svc.cluster.local", "svc.cluster.local."},
	}
}

func client() dhcpv6.DUID {
	return &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{0x52, 0x54, 0, 0x12, 0x34, 0x56}}
}

func own() dhcpv6.DUID {
	return &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0}}
}

func message(kind dhcpv6.MessageType, options ...dhcpv6.Option) *dhcpv6.Message {
	m := &dhcpv6.Message{MessageType: kind, TransactionID: dhcpv6.TransactionID{1, 2, 3}}
	for _, o := range options {
		m.AddOption(o)
	}
	return m
}

func association(id byte, addresses ...string) *dhcpv6.OptIANA {
	out := &dhcpv6.OptIANA{IaId: [4]byte{id}}
	for _, a := range addresses {
		out.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP(a), PreferredLifetime: time.Hour, ValidLifetime: time.Hour})
	}
	return out
}

func TestReplyGolden(t *testing.T) {
	id, server := dhcpv6.OptClientID(client()), dhcpv6.OptServerID(own())
	rapid := &dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionRapidCommit}
	for name, request := range map[string]*dhcpv6.Message{
		"solicit":       message(dhcpv6.MessageTypeSolicit, id, association(1)),
		"rapid":         message(dhcpv6.MessageTypeSolicit, id, rapid, association(1)),
		"request":       message(dhcpv6.MessageTypeRequest, id, server, association(1, "fd10:0:2::2")),
		"renew-stale":   message(dhcpv6.MessageTypeRenew, id, server, association(1, "fd10:0:2::77", "fd10:0:2::2")),
		"rebind":        message(dhcpv6.MessageTypeRebind, id, association(1, "fd10:0:2::2")),
		"confirm":       message(dhcpv6.MessageTypeConfirm, id, association(1, "fd10:0:2::2")),
		"confirm-stale": message(dhcpv6.MessageTypeConfirm, id, association(1, "2001:db8::2")),
		"release":       message(dhcpv6.MessageTypeRelease, id, server, association(1, "fd10:0:2::2")),
		"information":   message(dhcpv6.MessageTypeInformationRequest),
		"further": message(dhcpv6.MessageTypeSolicit, id, association(1), association(2), &dhcpv6.OptIATA{IaId: [4]byte{3}},
			&dhcpv6.OptIAPD{IaId: [4]byte{4}}),
	} {
		t.Run(name, func(t *testing.T) {
			// As they come over the wire.
			request, err := dhcpv6.MessageFromBytes(request.ToBytes())
			if err != nil {
				t.Fatal(err)
			}
			reply, err := Reply(lease(), request)
			if err != nil || reply == nil {
				t.Fatalf("%v, %v", reply, err)
			}
			read, err := dhcpv6.MessageFromBytes(reply.ToBytes())
			if err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, "testdata/"+name+".golden", read.Summary()+"\n")
		})
	}
}

func TestReplyKeepsSilent(t *testing.T) {
	id, server := dhcpv6.OptClientID(client()), dhcpv6.OptServerID(own())
	other := dhcpv6.OptServerID(client())
	for name, request := range map[string]*dhcpv6.Message{
		"request of another server":  message(dhcpv6.MessageTypeRequest, id, other, association(1)),
		"request without a server":   message(dhcpv6.MessageTypeRequest, id, association(1)),
		"solicit without a client":   message(dhcpv6.MessageTypeSolicit, association(1)),
		"solicit with a server":      message(dhcpv6.MessageTypeSolicit, id, server, association(1)),
		"information from another's": message(dhcpv6.MessageTypeInformationRequest, other),
	} {
		if reply, err := Reply(lease(), request); reply != nil || err != nil {
			t.Errorf("%s: %v, %v", name, reply, err)
		}
	}
	for _, kind := range []dhcpv6.MessageType{dhcpv6.MessageTypeAdvertise, dhcpv6.MessageTypeReply, dhcpv6.MessageTypeReconfigure, 99} {
		if reply, err := Reply(lease(), message(kind, id, server)); reply != nil || !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, %v", kind, reply, err)
		}
	}
	many := message(dhcpv6.MessageTypeSolicit, id)
	for i := range maxAssociations + 1 {
		many.AddOption(association(byte(i)))
	}
	if reply, err := Reply(lease(), many); reply != nil || !errors.Is(err, ErrMalformed) {
		t.Errorf("%d associations: %v, %v", maxAssociations+1, reply, err)
	}
}

// TestAnswersAreNotCutUp: neither answer is cut up, however much there is to tell.
func TestAnswersAreNotCutUp(t *testing.T) {
	l := lease()
	for i := range 100 {
		l.SearchDomains = append(l.SearchDomains, fmt.Sprintf("domain%d.%s.example", i, strings.Repeat("x", 60)))
	}
	for range MaxServers - 1 {
		l.DNS = append(l.DNS, l.DNS[0])
	}
	stale := association(1)
	for i := range 200 {
		stale.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP(fmt.Sprintf("2001:db8::%x", i+1))})
	}
	reply, err := Reply(l, message(dhcpv6.MessageTypeRenew, dhcpv6.OptClientID(client()), dhcpv6.OptServerID(own()), stale))
	if err != nil || len(reply.ToBytes()) > maxPayload || len(reply.Options.DomainSearchList().Labels) < 3 {
		t.Errorf("reply %v: %v", reply, err)
	}
	advertisement, err := Advertisement(l)
	if err != nil || len(advertisement) > maxPayload {
		t.Errorf("advertisement of %d octets: %v", len(advertisement), err)
	}
}

func TestRouterAdvertisement(t *testing.T) {
	out, err := Advertisement(lease())
	if err != nil {
		t.Fatal(err)
	}
	m, err := ndp.ParseMessage(out)
	if err != nil {
		t.Fatal(err)
	}
	ra := m.(*ndp.RouterAdvertisement)
	var text strings.Builder
	fmt.Fprintf(&text, "hop limit %d, managed %t, other %t, lifetime %s\n", ra.CurrentHopLimit, ra.ManagedConfiguration, ra.OtherConfiguration, ra.RouterLifetime)
	for _, o := range ra.Options {
		fmt.Fprintf(&text, "%T %+v\n", o, o)
	}
	golden.Compare(t, "testdata/advertisement.golden", text.String())
}

func TestLeaseCheck(t *testing.T) {
	if err := lease().Check(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Lease){
		"10.0.2.2/24":   func(l *Lease) { l.Guest = netip.MustParsePrefix("10.0.2.2/24") },
		"address fe80":  func(l *Lease) { l.Guest = netip.MustParsePrefix("fe80::2/64") },
		"router fd10":   func(l *Lease) { l.Router = netip.MustParseAddr("fd10::1") },
		"MAC":           func(l *Lease) { l.RouterMAC = "02:00" },
		"MTU 1279":      func(l *Lease) { l.MTU = 1279 },
		"MTU 65536":     func(l *Lease) { l.MTU = 1 << 16 },
		"fe80::53%eth0": func(l *Lease) { l.DNS = []netip.Addr{netip.MustParseAddr("fe80::53%eth0")} },
		"server 10.96":  func(l *Lease) { l.DNS = []netip.Addr{netip.MustParseAddr("10.96.0.10")} },
		"9 name":        func(l *Lease) { l.DNS = make([]netip.Addr, 9) },
		"search domain": func(l *Lease) { l.SearchDomains = []string{"a..b"} },
	} {
		l := lease()
		spoil(&l)
		if err := l.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
		if _, err := Advertisement(l); err == nil {
			t.Errorf("%s: advertised", want)
		}
	}
}

// FuzzMessages: what a guest sends ends no server, and no answer is too long.
func FuzzMessages(f *testing.F) {
	f.Add(message(dhcpv6.MessageTypeSolicit, dhcpv6.OptClientID(client()), association(1, "fd10:0:2::2")).ToBytes())
	f.Add(message(dhcpv6.MessageTypeRenew, dhcpv6.OptClientID(client()), dhcpv6.OptServerID(own()), association(1, "2001:db8::1")).ToBytes())
	f.Add([]byte{133, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, packet []byte) {
		solicits(packet)
		m, err := dhcpv6.MessageFromBytes(packet)
		if err != nil {
			return
		}
		reply, err := Reply(lease(), m)
		if err == nil && reply != nil && len(reply.ToBytes()) > maxPayload {
			t.Errorf("%d octets", len(reply.ToBytes()))
		}
	})
}
