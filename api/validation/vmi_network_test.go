package validation

import (
	"slices"
	"strconv"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidateNetworks(t *testing.T) {
	cidr := func(network string) func(*spec) {
		return func(s *spec) { s.Networks[0].Pod.VMNetworkCIDR = network }
	}
	cidr6 := func(network string) func(*spec) {
		return func(s *spec) { s.Networks[0].Pod.VMIPv6NetworkCIDR = network }
	}
	multus := func(name string, first bool) func(*spec) {
		return func(s *spec) {
			nic := "nic" + strconv.Itoa(len(s.Networks))
			s.Networks = append(s.Networks, v1.Network{Name: nic, Multus: &v1.MultusNetwork{NetworkName: name, Default: first}})
			s.Domain.Devices.Interfaces = append(s.Domain.Devices.Interfaces,
				v1.Interface{Name: nic, Model: "virtio", Bridge: &v1.InterfaceBridge{}})
		}
	}
	without := func(s *spec, name string) {
		s.Networks = slices.DeleteFunc(s.Networks, func(n v1.Network) bool { return n.Name == name })
		s.Domain.Devices.Interfaces = slices.DeleteFunc(s.Domain.Devices.Interfaces,
			func(n v1.Interface) bool { return n.Name == name })
	}
	const wrongCIDR, wrongCIDR6 = "[0].pod.vmNetworkCIDR", "[0].pod.vmIPv6NetworkCIDR"
	edits{
		"no interface":              {func(s *spec) { s.Domain.Devices.Interfaces, s.Networks = nil, nil }, ""},
		"network without interface": {func(s *spec) { s.Domain.Devices.Interfaces = nil }, "[0].name"},
		"interface without network": {func(s *spec) { s.Networks = nil }, "spec.domain.devices.interfaces[0].name"},
		"two pod networks": {func(s *spec) {
			s.Networks = append(s.Networks, v1.Network{Name: "more", Pod: &v1.PodNetwork{VMNetworkCIDR: "10.1.0.0/24"}})
			s.Domain.Devices.Interfaces = append(s.Domain.Devices.Interfaces,
				v1.Interface{Name: "more", Model: "virtio", Masquerade: &v1.InterfaceMasquerade{}})
		}, "[1].pod"},
		"IPv6 network":                    {cidr6("fd20:1::/64"), ""},
		"IPv4 for the IPv6 network":       {cidr6("10.0.2.0/24"), wrongCIDR6},
		"IPv4 in IPv6":                    {cidr6("::ffff:10.0.2.0/120"), wrongCIDR6},
		"IPv6 host part":                  {cidr6("fd20:1::1/64"), wrongCIDR6},
		"IPv6 too small":                  {cidr6("fd20:1::/127"), wrongCIDR6},
		"IPv6 too large":                  {cidr6("fd20::/47"), wrongCIDR6},
		"IPv6 link-local":                 {cidr6("fe80::/64"), wrongCIDR6},
		"IPv6 multicast":                  {cidr6("ff02::/64"), wrongCIDR6},
		"IPv6 with a zone":                {cidr6("fd20:1::%eth0/64"), wrongCIDR6},
		"no IPv6 network":                 {cidr6("fd20"), wrongCIDR6},
		"network of Multus":               {multus("lan", false), ""},
		"of another namespace":            {multus("office/lan.v2", false), ""},
		"Multus's in the pod's place":     {func(s *spec) { multus("lan", true)(s); without(s, "default") }, ""},
		"no pod network":                  {func(s *spec) { multus("lan", false)(s); without(s, "default") }, ""},
		"Multus's default beside the pod": {multus("lan", true), "[1].multus.default"},
		"two defaults of Multus": {func(s *spec) {
			multus("lan", true)(s)
			multus("wan", true)(s)
			without(s, "default")
		}, "[1].multus.default"},
		"the pod's after Multus's default": {func(s *spec) {
			multus("lan", true)(s)
			slices.Reverse(s.Networks)
		}, "[1].pod"},
		"both sources": {func(s *spec) { s.Networks[0].Multus = &v1.MultusNetwork{NetworkName: "lan"} },
			"[0].multus"},
		"no name":              {multus("", false), "[1].multus.networkName"},
		"no name in namespace": {multus("office/", false), "[1].multus.networkName"},
		"no namespace":         {multus("/lan", false), "[1].multus.networkName"},
		"three parts":          {multus("a/b/c", false), "[1].multus.networkName"},
		"an annotation":        {multus(`lan","interface":"eth0`, false), "[1].multus.networkName"},
		"an interface name":    {multus("lan@eth0", false), "[1].multus.networkName"},
		"list":                 {multus("lan,wan", false), "[1].multus.networkName"},
		// The sums of both names begin with aad342421ee.
		"names with one link": {func(s *spec) {
			multus("lan", false)(s)
			multus("wan", false)(s)
			for i, name := range []string{"lan-1529642", "lan-2464210"} {
				s.Networks[i+1].Name, s.Domain.Devices.Interfaces[i+1].Name = name, name
			}
		}, "[2].name"},
		"masquerade on Multus's": {func(s *spec) {
			multus("lan", false)(s)
			nic := &s.Domain.Devices.Interfaces[1]
			nic.Bridge, nic.Masquerade = nil, &v1.InterfaceMasquerade{}
		}, "spec.domain.devices.interfaces[1].masquerade"},
		"32 networks": {func(s *spec) {
			for i := range 31 {
				multus("lan"+strconv.Itoa(i), false)(s)
			}
		}, "spec.domain.devices.interfaces"},
		"network without source":     {func(s *spec) { s.Networks[0].Pod = nil }, "[0].pod"},
		"leading zeros in the CIDR":  {cidr("10.10.010.0/24"), ""},
		"letters in the CIDR":        {cidr("10.0x8.10.0/24"), wrongCIDR},
		"IPv4 in IPv6 as the CIDR":   {cidr("::ffff:10.0.02.0/120"), wrongCIDR},
		"no CIDR":                    {cidr("10.0.2.0"), wrongCIDR},
		"host's address in the CIDR": {cidr("10.0.2.1/24"), wrongCIDR},
		"IPv6 CIDR":                  {cidr("fd10::/120"), wrongCIDR},
		"loopback CIDR":              {cidr("127.0.0.0/8"), wrongCIDR},
		"multicast CIDR":             {cidr("224.0.0.0/8"), wrongCIDR},
		"narrow CIDR":                {cidr("10.0.2.0/30"), wrongCIDR},
	}.try(t, "spec.networks")
}
