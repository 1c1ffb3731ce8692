package netsetup

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// route is "destination", for one on the link, or "destination via gateway".
func route(text string) Route {
	destination, gateway, _ := strings.Cut(text, " via ")
	r := Route{Destination: netip.MustParsePrefix(destination)}
	if gateway != "" {
		r.Gateway = netip.MustParseAddr(gateway)
	}
	return r
}

func routes(texts ...string) (out []Route) {
	for _, text := range texts {
		out = append(out, route(text))
	}
	return out
}

// ptpFacts is what the ptp plugin leaves: neighbours are reached over the host.
func ptpFacts() Facts {
	f := podFacts()
	f.Routes = routes("0.0.0.0/0 via 10.244.0.1", "10.244.0.0/24 via 10.244.0.1", "10.244.0.1/32")
	return f
}

func calicoFacts() Facts {
	f := podFacts()
	f.Addresses = []netip.Prefix{netip.MustParsePrefix("192.168.7.9/32")}
	f.Routes = routes("0.0.0.0/0 via 169.254.1.1", "169.254.1.1/32")
	return f
}

func TestPlanBridgeGolden(t *testing.T) {
	dual := podFacts()
	dual.Addresses = append(dual.Addresses, netip.MustParsePrefix("10.244.0.6/24"), netip.MustParsePrefix("fd00:10:244::5/64"))
	dual.Routes = append(dual.Routes, routes("172.16.0.0/12 via 10.244.0.9", "192.0.2.128/25", "fd00:10:244::/64")...)
	for name, c := range map[string]struct {
		facts  Facts
		bridge Bridged
	}{
		"bridge":         {podFacts(), Bridged{}},
		"bridge-ptp":     {ptpFacts(), Bridged{Queues: 2}},
		"bridge-calico":  {calicoFacts(), Bridged{MAC: "52:54:00:12:34:56"}},
		"managed":        {dual, Bridged{Managed: true}},
		"managed-beside": {Facts{Link: "pod37a8eec1ce1", MAC: "5a:11:22:33:44:55", MTU: 1500}, Bridged{Managed: true, Beside: true, MAC: "52:54:00:12:34:56"}},
		"bridge-several": {dual, Bridged{MAC: "0E-58-0a-f4-00-05"}}, // the MAC that the pod interface would be given
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := PlanBridge(c.facts, c.bridge)
			if err != nil {
				t.Fatal(err)
			}
			planGolden(t, name, plan)
		})
	}
}

func TestPlanBridgeTellsRoutes(t *testing.T) {
	for name, c := range map[string]struct {
		facts  Facts
		guest  string
		router string
		routes []Route
	}{
		"bridge": {podFacts(), "10.244.0.5/24", "10.244.0.1", nil},
		"ptp":    {ptpFacts(), "10.244.0.5/32", "10.244.0.1", routes("10.244.0.1/32", "10.244.0.0/24 via 10.244.0.1")},
		"calico": {calicoFacts(), "192.168.7.9/32", "169.254.1.1", routes("169.254.1.1/32")},
		"nothing beyond the link": {Facts{Link: "eth0", MAC: "0a:58:0a:f4:00:05", MTU: 1450,
			Addresses: podFacts().Addresses, Routes: routes("10.244.0.0/24")}, "10.244.0.5/24", "invalid IP", nil},
		"default on the link": {Facts{Link: "eth0", MAC: "0a:58:0a:f4:00:05", MTU: 1450,
			Addresses: podFacts().Addresses, Routes: routes("0.0.0.0/0")}, "10.244.0.5/32", "invalid IP", routes("0.0.0.0/0")},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := PlanBridge(c.facts, Bridged{})
			if err != nil {
				t.Fatal(err)
			}
			if plan.Guest[0].String() != c.guest || plan.Router.String() != c.router || !slices.Equal(plan.Routes, c.routes) {
				t.Errorf("guest %s, router %s, routes %v; want %s, %s, %v", plan.Guest[0], plan.Router, plan.Routes, c.guest, c.router, c.routes)
			}
			if lease := plan.Lease(c.facts.MAC); lease.Check() != nil || len(lease.Routes) != len(c.routes) || lease.MTU != 1450 {
				t.Errorf("lease %+v: %v", lease, lease.Check())
			}
		})
	}
}

func TestPlanBridgeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*Facts, *Bridged)
		want  []string // parts of the message
	}{
		"no IPv4": {func(f *Facts, b *Bridged) {
			f.Addresses = []netip.Prefix{netip.MustParsePrefix("fd00::5/64")}
		}, []string{"eth0", "no IPv4"}},
		"no MAC":        {func(f *Facts, b *Bridged) { f.MAC = "" }, []string{`MAC ""`}},
		"bad MAC":       {func(f *Facts, b *Bridged) { b.MAC = "52:54" }, []string{`"52:54"`}},
		"multicast MAC": {func(f *Facts, b *Bridged) { b.MAC = "01:00:5e:00:00:01" }, []string{"01:00:5e:00:00:01"}},
		"queues":        {func(f *Facts, b *Bridged) { b.Queues = 257 }, []string{"257", "256"}},
		"no queue":      {func(f *Facts, b *Bridged) { b.Queues = -1 }, []string{"-1"}},
		"long link":     {func(f *Facts, b *Bridged) { f.Link = "eth012345678" }, []string{"k6t-eth012345678"}},
		"no link":       {func(f *Facts, b *Bridged) { f.Link = "" }, []string{`""`}},
		"no Ethernet":   {func(f *Facts, b *Bridged) { f.MAC, b.MAC = "", guestMAC }, []string{"eth0", "no Ethernet link"}},

		"no room for DHCP": {func(f *Facts, b *Bridged) { f.MTU = 575 }, []string{"eth0", "MTU 575", "576"}},
		"more than a tap":  {func(f *Facts, b *Bridged) { f.MTU = 65522 }, []string{"eth0", "MTU 65522", "65521"}},
	} {
		t.Run(name, func(t *testing.T) {
			facts, b := podFacts(), Bridged{}
			c.spoil(&facts, &b)
			plan, err := PlanBridge(facts, b)
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
