package wiring

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

// TestDHCPTellsWhatTheInterfaceAsksFor: what an interface asks for, and what its network is, is what DHCP tells.
func TestDHCPTellsWhatTheInterfaceAsksFor(t *testing.T) {
	facts := netsetup.Facts{Link: "eth0", MTU: 1450, MAC: "0a:58:0a:58:00:05",
		Addresses: []netip.Prefix{prefix("10.88.0.5/24")},
		Routes: []netsetup.Route{{Destination: prefix("0.0.0.0/0"), Gateway: addr("10.88.0.1")},
			{Destination: prefix("10.88.0.1/32")}}}
	resolved := qemuargs.NIC{MAC: "52:54:00:00:00:01", Queues: 2}
	options := v1.DHCPOptions{BootFileName: "boot", TFTPServerName: "tftp", NTPServers: []string{"192.0.2.1"},
		PrivateOptions: []v1.DHCPPrivateOptions{{Option: 240, Value: "x"}}}
	vmi := &v1.VirtualMachineInstance{}
	vmi.Name = "guest"
	// Leading zeros, as KubeVirt takes them.
	vmi.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{VMNetworkCIDR: "192.168.0100.0/24"}}}
	inside := dhcp.Lease{ClientMAC: resolved.MAC, ClientIP: prefix("192.168.100.2/24"), ServerIP: addr("192.168.100.1"),
		Router: addr("192.168.100.1"), Hostname: "guest", MTU: 1450}
	own := dhcp.Lease{ClientMAC: resolved.MAC, ClientIP: prefix("10.88.0.5/32"), ServerIP: addr("169.254.75.10"),
		Router: addr("10.88.0.1"),
		Routes: []dhcp.Route{{Destination: prefix("10.88.0.1/32")}}, Hostname: "guest", MTU: 1450,
		NTP: []netip.Addr{addr("192.0.2.1")}, TFTPServer: "tftp", BootFile: "boot",
		Private: []dhcp.Option{{Code: 240, Value: "x"}}}
	asks := func(options v1.DHCPOptions) v1.Interface {
		return v1.Interface{Bridge: &v1.InterfaceBridge{}, DHCPOptions: &options}
	}
	private := func(option int) v1.DHCPOptions {
		return v1.DHCPOptions{PrivateOptions: []v1.DHCPPrivateOptions{{Option: option, Value: "x"}}}
	}
	for name, c := range map[string]struct {
		nic   v1.Interface
		want  dhcp.Lease
		error string
	}{
		"masquerade":       {v1.Interface{Masquerade: &v1.InterfaceMasquerade{}}, inside, ""},
		"bridge":           {asks(options), own, ""},
		"no time server":   {asks(v1.DHCPOptions{NTPServers: []string{"ntp"}}), dhcp.Lease{}, `"ntp"`},
		"IPv6 time server": {asks(v1.DHCPOptions{NTPServers: []string{"fd00::1"}}), dhcp.Lease{}, "fd00::1"},
		"option 300":       {asks(private(300)), dhcp.Lease{}, "300"},
		"option 12":        {asks(private(12)), dhcp.Lease{}, "12"},
	} {
		t.Run(name, func(t *testing.T) {
			c.nic.Name = "default"
			made, err := planOf(vmi, c.nic, resolved, facts)
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
			equal := cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
				cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}
			if diff := cmp.Diff(c.want, got, equal); err != nil || diff != "" {
				t.Errorf("error %v, -want +got:\n%s", err, diff)
			}
		})
	}
}

// TestOverlappingAddressIsRefused: an address that the private network of the masqueraded interface has too is
// refused, and so no guest runs whose masqueraded interface hears nothing.
func TestOverlappingAddressIsRefused(t *testing.T) {
	vmi := nodetest.Beside()
	vmi.Spec.Networks[0].Pod.VMNetworkCIDR = "192.0.2.0/28"
	machine := &qemuargs.Machine{}
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		machine.NICs = append(machine.NICs, qemuargs.NIC{Name: nic.Name, MAC: v1.MAC(vmi.UID, nic.Name), Queues: 1})
	}
	_, errs := Plan(vmi, machine, nodetest.BesideLinks(vmi))
	if want := `spec.domain.devices.interfaces[2]: Forbidden: network "given" gives the address 192.0.2.9, which is in the private network 192.0.2.0/28 of interface "default"`; len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
		t.Errorf("got %v", errs)
	}
	vmi.Spec.Networks[0].Pod.VMNetworkCIDR = "192.0.2.16/28"
	if got, errs := Plan(vmi, machine, nodetest.BesideLinks(vmi)); len(errs) > 0 || len(got) != 3 {
		t.Errorf("got %v", errs)
	}
}

// TestPasstInterfaceIsNotWired: virt-handler wires nothing for an interface of passt, and the others as ever.
func TestPasstInterfaceIsNotWired(t *testing.T) {
	vmi := nodetest.Beside()
	first := &vmi.Spec.Domain.Devices.Interfaces[0]
	first.Masquerade, first.PasstBinding = nil, &v1.InterfacePasstBinding{}
	machine := &qemuargs.Machine{}
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		machine.NICs = append(machine.NICs, qemuargs.NIC{Name: nic.Name, MAC: v1.MAC(vmi.UID, nic.Name), Queues: 1})
	}
	got, errs := Plan(vmi, machine, nodetest.BesideLinks(vmi))
	if len(errs) > 0 || len(got) != 2 || got[0].name != vmi.Spec.Domain.Devices.Interfaces[1].Name ||
		got[0].nic.Name != got[0].name {
		t.Errorf("%+v, %v", got, errs)
	}
}

// TestGuestIsToldNoLargerMTUThanItsCards: a guest whose card takes no large packets is not told that it may send some.
func TestGuestIsToldNoLargerMTUThanItsCards(t *testing.T) {
	for driver, want := range map[string]uint16{"virtio-net-pci-non-transitional": 60000, "e1000": 16110, "e1000e": 9212,
		"rtl8139": 4096} {
		if got := mtuOf(qemuargs.NIC{Driver: driver}, 60000); got != want {
			t.Errorf("%s: %d, want %d", driver, got, want)
		}
		if got := mtuOf(qemuargs.NIC{Driver: driver}, 1450); got != 1450 {
			t.Errorf("%s: %d of 1450", driver, got)
		}
	}
}
