package node

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

// TestDHCPTellsWhatTheInterfaceAsksFor: what an interface asks for, and what its network is, is what DHCP tells.
func TestDHCPTellsWhatTheInterfaceAsksFor(t *testing.T) {
	facts := netsetup.Facts{Link: "eth0", MTU: 1450, MAC: "0a:58:0a:58:00:05", Addresses: []netip.Prefix{prefix("10.88.0.5/24")},
		Routes: []netsetup.Route{{Destination: prefix("0.0.0.0/0"), Gateway: addr("10.88.0.1")}, {Destination: prefix("10.88.0.1/32")}}}
	resolved := qemuargs.NIC{MAC: "52:54:00:00:00:01", Queues: 2}
	options := &v1.DHCPOptions{BootFileName: "boot", TFTPServerName: "tftp", NTPServers: []string{"192.0.2.1"},
		PrivateOptions: []v1.DHCPPrivateOptions{{Option: 240, Value: "x"}}}
	vmi := &v1.VirtualMachineInstance{}
	vmi.Name = "guest"
	vmi.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{VMNetworkCIDR: "192.168.0100.0/24"}}} // leading zeros, as KubeVirt takes them
	private := dhcp.Lease{ClientMAC: resolved.MAC, ClientIP: prefix("192.168.100.2/24"), ServerIP: addr("192.168.100.1"), Router: addr("192.168.100.1"), Hostname: "guest", MTU: 1450}
	own := dhcp.Lease{ClientMAC: resolved.MAC, ClientIP: prefix("10.88.0.5/32"), ServerIP: addr("169.254.75.10"), Router: addr("10.88.0.1"),
		Routes: []dhcp.Route{{Destination: prefix("10.88.0.1/32")}}, Hostname: "guest", MTU: 1450,
		NTP: []netip.Addr{addr("192.0.2.1")}, TFTPServer: "tftp", BootFile: "boot", Private: []dhcp.Option{{Code: 240, Value: "x"}}}
	for name, c := range map[string]struct {
		nic   v1.Interface
		want  dhcp.Lease
		error string
	}{
		"masquerade":       {v1.Interface{Masquerade: &v1.InterfaceMasquerade{}}, private, ""},
		"bridge":           {v1.Interface{Bridge: &v1.InterfaceBridge{}, DHCPOptions: options}, own, ""},
		"no time server":   {v1.Interface{Bridge: &v1.InterfaceBridge{}, DHCPOptions: &v1.DHCPOptions{NTPServers: []string{"ntp"}}}, dhcp.Lease{}, `"ntp"`},
		"IPv6 time server": {v1.Interface{Bridge: &v1.InterfaceBridge{}, DHCPOptions: &v1.DHCPOptions{NTPServers: []string{"fd00::1"}}}, dhcp.Lease{}, "fd00::1"},
		"option 300":       {v1.Interface{Bridge: &v1.InterfaceBridge{}, DHCPOptions: &v1.DHCPOptions{PrivateOptions: []v1.DHCPPrivateOptions{{Option: 300, Value: "x"}}}}, dhcp.Lease{}, "300"},
		"option 12":        {v1.Interface{Bridge: &v1.InterfaceBridge{}, DHCPOptions: &v1.DHCPOptions{PrivateOptions: []v1.DHCPPrivateOptions{{Option: 12, Value: "x"}}}}, dhcp.Lease{}, "12"},
	} {
		t.Run(name, func(t *testing.T) {
			c.nic.Name = "default"
			made, err := plan(vmi, c.nic, resolved, facts)
			if err != nil {
				t.Fatal(err)
			}
			if made.Tap.Queues != 2 {
				t.Errorf("%d queues", made.Tap.Queues)
			}
			got, err := lease(vmi, c.nic, resolved, made)
			if c.error != "" {
				if err == nil || !strings.Contains(err.Error(), c.error) {
					t.Errorf("got %v", err)
				}
				return
			}
			equal := cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}
			if diff := cmp.Diff(c.want, got, equal); err != nil || diff != "" {
				t.Errorf("error %v, -want +got:\n%s", err, diff)
			}
		})
	}
}
