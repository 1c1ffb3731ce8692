package netsetup

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

func TestMain(m *testing.M) { golden.Main(m, "testdata/*.golden.json") }

func podFacts() Facts {
	return Facts{
		Link: "eth0", Index: 2, MTU: 1450, MAC: "0a:58:0a:f4:00:05",
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.5/24")},
		Routes: []Route{
			{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.244.0.1")},
			{Destination: netip.MustParsePrefix("10.244.0.0/24")},
		},
	}
}

func TestPlanMasqueradeGolden(t *testing.T) {
	dual := podFacts()
	dual.Addresses = append(dual.Addresses, netip.MustParsePrefix("10.244.0.6/24"), netip.MustParsePrefix("fd00:10:244::5/64"))
	only6 := podFacts()
	only6.Addresses = []netip.Prefix{netip.MustParsePrefix("fd00:10:244::5/64")}
	only6.Routes = []Route{{Destination: netip.MustParsePrefix("::/0"), Gateway: netip.MustParseAddr("fe80::1")}}
	for name, c := range map[string]struct {
		facts      Facts
		masquerade Masquerade
	}{
		"all-ports":   {podFacts(), Masquerade{}},
		"ports":       {podFacts(), Masquerade{Ports: []Port{{"TCP", 22}, {"UDP", 53}, {"TCP", 22}}}},
		"network":     {podFacts(), Masquerade{Network: netip.MustParsePrefix("192.168.100.0/30"), Queues: 4}},
		"several-ips": {dual, Masquerade{Ports: []Port{{"TCP", 80}}}},
		"ipv6-only":   {only6, Masquerade{Ports: []Port{{"UDP", 53}}, Network6: netip.MustParsePrefix("fd20::/64")}},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := PlanMasquerade(c.facts, c.masquerade)
			if err != nil {
				t.Fatal(err)
			}
			planGolden(t, name, plan)
		})
	}
}

func planGolden(t *testing.T, name string, plan *Plan) {
	t.Helper()
	got, err := json.MarshalIndent(plan, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "testdata/"+name+".golden.json", string(got)+"\n")
	var read Plan
	if err := json.Unmarshal(got, &read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plan, &read, equality); diff != "" {
		t.Errorf("changed by JSON, -made +read:\n%s", diff)
	}
}

// equality compares facts and plans.
var equality = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func TestPlanMasqueradeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*Facts, *Masquerade)
		want  []string // parts of the message
	}{
		"pod address inside": {func(f *Facts, m *Masquerade) {
			f.Addresses[0] = netip.MustParsePrefix("10.0.2.77/16")
		}, []string{"10.0.2.77", "10.0.2.0/24"}},
		"pod gateway inside": {func(f *Facts, m *Masquerade) {
			f.Routes[0].Gateway = netip.MustParseAddr("192.168.0.1")
			m.Network = netip.MustParsePrefix("192.168.0.0/24")
		}, []string{"192.168.0.1", "192.168.0.0/24"}},
		"no address": {func(f *Facts, m *Masquerade) { f.Addresses = nil }, []string{"eth0", "no address"}},
		"pod IPv6 address inside": {func(f *Facts, m *Masquerade) {
			f.Addresses = append(f.Addresses, netip.MustParsePrefix("fd10:0:2::77/64"))
		}, []string{"fd10:0:2::77", "fd10:0:2::/120"}},
		"IPv4 network for IPv6":  {func(f *Facts, m *Masquerade) { m.Network6 = netip.MustParsePrefix("10.0.2.0/24") }, []string{"10.0.2.0/24"}},
		"host part for IPv6":     {func(f *Facts, m *Masquerade) { m.Network6 = netip.MustParsePrefix("fd10::1/120") }, []string{"fd10::1/120"}},
		"small network for IPv6": {func(f *Facts, m *Masquerade) { m.Network6 = netip.MustParsePrefix("fd10::/127") }, []string{"fd10::/127"}},
		"link-local network":     {func(f *Facts, m *Masquerade) { m.Network6 = netip.MustParsePrefix("fe80::/64") }, []string{"fe80::/64"}},
		"IPv6 network":           {func(f *Facts, m *Masquerade) { m.Network = netip.MustParsePrefix("fd10:0:2::/120") }, []string{"fd10:0:2::/120"}},
		"host part":              {func(f *Facts, m *Masquerade) { m.Network = netip.MustParsePrefix("10.0.2.1/24") }, []string{"10.0.2.1/24"}},
		"small network":          {func(f *Facts, m *Masquerade) { m.Network = netip.MustParsePrefix("10.0.2.0/31") }, []string{"10.0.2.0/31"}},
		"loopback network":       {func(f *Facts, m *Masquerade) { m.Network = netip.MustParsePrefix("127.0.2.0/24") }, []string{"127.0.2.0/24"}},
		"protocol":               {func(f *Facts, m *Masquerade) { m.Ports = []Port{{"SCTP", 80}} }, []string{"SCTP", "80"}},
		"port":                   {func(f *Facts, m *Masquerade) { m.Ports = []Port{{"TCP", 0}} }, []string{"TCP", "port 0"}},
		"queues":                 {func(f *Facts, m *Masquerade) { m.Queues = 257 }, []string{"257", "256"}},
		"no queue":               {func(f *Facts, m *Masquerade) { m.Queues = -1 }, []string{"-1"}},
		"long link":              {func(f *Facts, m *Masquerade) { f.Link = "eth012345678" }, []string{"k6t-eth012345678"}},
		"no link":                {func(f *Facts, m *Masquerade) { f.Link = "" }, []string{`""`}},
		"no room for DHCP":       {func(f *Facts, m *Masquerade) { f.MTU = 575 }, []string{"eth0", "MTU 575", "576"}},
		"more than a tap":        {func(f *Facts, m *Masquerade) { f.MTU = 65522 }, []string{"eth0", "MTU 65522", "65521"}},
	} {
		t.Run(name, func(t *testing.T) {
			facts, m := podFacts(), Masquerade{}
			c.spoil(&facts, &m)
			plan, err := PlanMasquerade(facts, m)
			if err == nil {
				t.Fatalf("accepted: %+v", plan)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not name %q", err, part)
				}
			}
		})
	}
}
