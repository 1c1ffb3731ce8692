package validation

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidateInterfaces(t *testing.T) {
	nic := func(edit func(*v1.Interface)) func(*spec) {
		return func(s *spec) { edit(&s.Domain.Devices.Interfaces[0]) }
	}
	mac := func(mac string) func(*spec) { return nic(func(n *v1.Interface) { n.MacAddress = mac }) }
	private := func(options ...v1.DHCPPrivateOptions) *v1.DHCPOptions {
		return &v1.DHCPOptions{PrivateOptions: options}
	}
	dhcp := func(o *v1.DHCPOptions) func(*spec) { return nic(func(n *v1.Interface) { n.DHCPOptions = o }) }
	long := strings.Repeat("x", 250)
	edits{
		"two interfaces of a name": {func(s *spec) {
			s.Domain.Devices.Interfaces = append(s.Domain.Devices.Interfaces, s.Domain.Devices.Interfaces[0])
		}, "[1].name"},
		"no MAC":              {mac("52:54:00"), "[0].macAddress"},
		"EUI-64":              {mac("52:54:00:00:00:00:00:01"), "[0].macAddress"},
		"gateway's MAC":       {mac("02-00-00-00-00-00"), "[0].macAddress"},
		"port 0":              {nic(func(n *v1.Interface) { n.Ports[0].Port = 0 }), "[0].ports[0].port"},
		"port 65536":          {nic(func(n *v1.Interface) { n.Ports[1].Port = 65536 }), "[0].ports[1].port"},
		"SCTP":                {nic(func(n *v1.Interface) { n.Ports[1].Protocol = "SCTP" }), "[0].ports[1].protocol"},
		"two ports of a name": {nic(func(n *v1.Interface) { n.Ports[1].Name = "http" }), "[0].ports[1].name"},
		"DHCP options": {dhcp(&v1.DHCPOptions{TFTPServerName: "tftp.example", BootFileName: "boot",
			NTPServers:     []string{"10.0.0.1"},
			PrivateOptions: []v1.DHCPPrivateOptions{{Option: 240, Value: "x"}}}), ""},
		"NTP server by name": {dhcp(&v1.DHCPOptions{NTPServers: []string{"10.0.0.1", "ntp.example"}}),
			"[0].dhcpOptions.ntpServers[1]"},
		"public DHCP option": {dhcp(private(v1.DHCPPrivateOptions{Option: 6, Value: "x"})),
			"[0].dhcpOptions.privateOptions[0].option"},
		"DHCP option twice": {dhcp(private(v1.DHCPPrivateOptions{Option: 224, Value: "x"},
			v1.DHCPPrivateOptions{Option: 224, Value: "y"})), "[0].dhcpOptions.privateOptions[1].option"},
		"more DHCP options than fit": {dhcp(private(v1.DHCPPrivateOptions{Option: 224, Value: long},
			v1.DHCPPrivateOptions{Option: 225, Value: long}, v1.DHCPPrivateOptions{Option: 226, Value: long})),
			"[0].dhcpOptions"},
		"boot order shared by disk and interface": {nic(func(n *v1.Interface) { n.BootOrder = ptr.To[uint32](2) }),
			"[0].bootOrder"},
		"interface down":     {nic(func(n *v1.Interface) { n.State = v1.LinkDown }), ""},
		"interface sideways": {nic(func(n *v1.Interface) { n.State = "sideways" }), "[0].state"},
	}.try(t, "spec.domain.devices.interfaces")
}

const (
	linkedText = `{"runStrategy":"Always","template":{"spec":{
 "domain":{"devices":{"interfaces":[{"name":"own","masquerade":{}},{"name":"lan","bridge":{}}]},
  "memory":{"guest":"1Gi"}},
 "networks":[{"name":"own","pod":{}},{"name":"lan","multus":{"networkName":"lan"}}]}}}`
	ownNIC, lanNIC = `{"name":"own","masquerade":{}`, `{"name":"lan","bridge":{}`
)

// TestWhichInterfacesMayBeAbsent: which interfaces of a template may be absent, and that no VirtualMachineInstance has
// such an interface.
func TestWhichInterfacesMayBeAbsent(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(string) string
		says []string
	}{
		"LAN": {func(s string) string { return strings.Replace(s, lanNIC, lanNIC+`,"state":"absent"`, 1) }, nil},
		"pod network": {func(s string) string {
			return strings.Replace(s, ownNIC, `{"name":"own","bridge":{},"state":"absent"`, 1)
		}, []string{`"own" interface's state "absent" is not supported on default networks`}},
		"masquerade": {func(s string) string { return strings.Replace(s, ownNIC, ownNIC+`,"state":"absent"`, 1) }, []string{
			`"own" interface's state "absent" is supported only for bridge binding`,
			`"own" interface's state "absent" is not supported on default networks`}},
		"default: true": {func(s string) string {
			s = strings.Replace(strings.Replace(s, ownNIC+"},", "", 1), `{"name":"own","pod":{}},`, "", 1)
			return strings.Replace(strings.Replace(s, lanNIC, lanNIC+`,"state":"absent"`, 1), `"networkName"`,
				`"default":true,"networkName"`, 1)
		}, []string{"not supported on default networks"}},
	} {
		vm := parsedVM(t, c.edit(linkedText))
		errs := ValidateVirtualMachine(vm)
		if len(errs) != len(c.says) {
			t.Errorf("%s: %v", name, errs)
			continue
		}
		for _, err := range errs {
			if !strings.HasSuffix(err.Field, "].state") ||
				!slices.ContainsFunc(c.says, func(s string) bool { return strings.Contains(err.Detail, s) }) {
				t.Errorf("%s: %v, want one of %q", name, err, c.says)
			}
		}
		vmi := &v1.VirtualMachineInstance{Spec: *vm.Spec.Template.Spec.DeepCopy()}
		v1.Default(vmi)
		if errs := ValidateVirtualMachineInstance(vmi); len(errs) == 0 ||
			!strings.Contains(errs.ToAggregate().Error(), "leave the interface and its network out") {
			t.Errorf("%s, a VirtualMachineInstance: %v", name, errs)
		}
	}
}
