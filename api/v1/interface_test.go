package v1

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

func TestValidateNetworks(t *testing.T) {
	cidr := func(network string) func(*spec) {
		return func(s *spec) { s.Networks[0].Pod.VMNetworkCIDR = network }
	}
	const wrongCIDR = "[0].pod.vmNetworkCIDR"
	edits{
		"no interface":              {func(s *spec) { s.Domain.Devices.Interfaces, s.Networks = nil, nil }, ""},
		"network without interface": {func(s *spec) { s.Domain.Devices.Interfaces = nil }, "[0].name"},
		"interface without network": {func(s *spec) { s.Networks = nil }, "spec.domain.devices.interfaces[0].name"},
		"two pod networks": {func(s *spec) {
			s.Networks = append(s.Networks, Network{Name: "more", Pod: &PodNetwork{VMNetworkCIDR: "10.1.0.0/24"}})
			s.Domain.Devices.Interfaces = append(s.Domain.Devices.Interfaces, Interface{Name: "more", Model: "virtio", Masquerade: &InterfaceMasquerade{}})
		}, "[1].pod"},
		"network without source":     {func(s *spec) { s.Networks[0].Pod = nil }, "[0].pod"},
		"no CIDR":                    {cidr("10.0.2.0"), wrongCIDR},
		"host's address in the CIDR": {cidr("10.0.2.1/24"), wrongCIDR},
		"IPv6 CIDR":                  {cidr("fd10::/120"), wrongCIDR},
		"loopback CIDR":              {cidr("127.0.0.0/8"), wrongCIDR},
		"multicast CIDR":             {cidr("224.0.0.0/8"), wrongCIDR},
		"narrow CIDR":                {cidr("10.0.2.0/30"), wrongCIDR},
	}.try(t, "spec.networks")
}

func TestValidateInterfaces(t *testing.T) {
	nic := func(edit func(*Interface)) func(*spec) {
		return func(s *spec) { edit(&s.Domain.Devices.Interfaces[0]) }
	}
	mac := func(mac string) func(*spec) { return nic(func(n *Interface) { n.MacAddress = mac }) }
	private := func(options ...DHCPPrivateOptions) *DHCPOptions { return &DHCPOptions{PrivateOptions: options} }
	dhcp := func(o *DHCPOptions) func(*spec) { return nic(func(n *Interface) { n.DHCPOptions = o }) }
	long := strings.Repeat("x", 250)
	edits{
		"two interfaces of a name": {func(s *spec) {
			s.Domain.Devices.Interfaces = append(s.Domain.Devices.Interfaces, s.Domain.Devices.Interfaces[0])
		}, "[1].name"},
		"no MAC":              {mac("52:54:00"), "[0].macAddress"},
		"EUI-64":              {mac("52:54:00:00:00:00:00:01"), "[0].macAddress"},
		"gateway's MAC":       {mac("02-00-00-00-00-00"), "[0].macAddress"},
		"port 0":              {nic(func(n *Interface) { n.Ports[0].Port = 0 }), "[0].ports[0].port"},
		"port 65536":          {nic(func(n *Interface) { n.Ports[1].Port = 65536 }), "[0].ports[1].port"},
		"SCTP":                {nic(func(n *Interface) { n.Ports[1].Protocol = "SCTP" }), "[0].ports[1].protocol"},
		"two ports of a name": {nic(func(n *Interface) { n.Ports[1].Name = "http" }), "[0].ports[1].name"},
		"DHCP options": {dhcp(&DHCPOptions{TFTPServerName: "tftp.example", BootFileName: "boot", NTPServers: []string{"10.0.0.1"},
			PrivateOptions: []DHCPPrivateOptions{{240, "x"}}}), ""},
		"NTP server by name":                      {dhcp(&DHCPOptions{NTPServers: []string{"10.0.0.1", "ntp.example"}}), "[0].dhcpOptions.ntpServers[1]"},
		"public DHCP option":                      {dhcp(private(DHCPPrivateOptions{6, "x"})), "[0].dhcpOptions.privateOptions[0].option"},
		"DHCP option twice":                       {dhcp(private(DHCPPrivateOptions{224, "x"}, DHCPPrivateOptions{224, "y"})), "[0].dhcpOptions.privateOptions[1].option"},
		"more DHCP options than fit":              {dhcp(private(DHCPPrivateOptions{224, long}, DHCPPrivateOptions{225, long}, DHCPPrivateOptions{226, long})), "[0].dhcpOptions"},
		"boot order shared by disk and interface": {nic(func(n *Interface) { n.BootOrder = ptr.To[uint32](2) }), "[0].bootOrder"},
		"interface down":                          {nic(func(n *Interface) { n.State = "down" }), "[0].state"},
	}.try(t, "spec.domain.devices.interfaces")
}
