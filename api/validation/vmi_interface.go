package validation

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

var (
	interfaceModels = []string{"virtio", "e1000", "e1000e", "rtl8139"}
	bindingRule     = "exactly one binding must be set (supported: bridge, masquerade, sriov, passtBinding, binding)"
)

// maxInterfaces is how many cards fit into the machine beside its disks. It is checked before a pod
// is connected to as many networks.
const maxInterfaces = 31

func validateInterface(nic *v1.Interface, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	bindings := 0
	for _, set := range []bool{nic.Bridge != nil, nic.Masquerade != nil, nic.SRIOV != nil, nic.PasstBinding != nil,
		nic.Binding != nil, nic.Slirp != nil, nic.Macvtap != nil, nic.Passt != nil} {
		if set {
			bindings++
		}
	}
	if bindings != 1 {
		errs = append(errs, field.Invalid(path, nic.Name, bindingRule))
	}
	errs = append(errs, oneOf(nic.Model, path.Child("model"), interfaceModels...)...)
	errs = append(errs, validateTag(nic.Tag, path)...)
	errs = append(errs, oneOf(nic.State, path.Child("state"), "", v1.LinkUp, v1.LinkDown, v1.LinkAbsent)...)
	if nic.MacAddress != "" {
		errs = append(errs, validateMAC(nic, path.Child("macAddress"))...)
	}
	errs = append(errs, validatePorts(nic.Ports, path.Child("ports"))...)
	if nic.DHCPOptions != nil {
		errs = append(errs, validateDHCP(nic.DHCPOptions, path.Child("dhcpOptions"))...)
	}
	if nic.Binding != nil && nic.Binding.Name == "" {
		errs = append(errs, field.Required(path.Child("binding", "name"), "the name of a plugin of the KubeVirt object"))
	}
	switch {
	case nic.DHCPOptions == nil:
	case nic.PasstBinding != nil:
		errs = append(errs, field.Forbidden(path.Child("dhcpOptions"),
			"passt's DHCP server has no further options; masquerade has them"))
	case !nic.MayServe():
		errs = append(errs, field.Forbidden(path.Child("dhcpOptions"), "no DHCP server of the pod serves an interface with "+
			"sriov or binding: the network's own server has to say the options"))
	}
	return errs
}

func validateMAC(nic *v1.Interface, path *field.Path) field.ErrorList {
	mac, err := net.ParseMAC(nic.MacAddress)
	var problem string
	switch {
	case err != nil || len(mac) != 6:
		problem = "must be six bytes in hex, such as 52:54:00:12:34:56"
	case mac[0]&1 != 0:
		problem = "must not be a multicast address"
	case mac.String() == "00:00:00:00:00:00":
		problem = "must not be all zeros"
	case nic.Masquerade != nil && mac.String() == "02:00:00:00:00:00":
		problem = "is the gateway's address with masquerade"
	case nic.PasstBinding != nil && mac.String() == passtMAC:
		problem = "is passt's own address with passtBinding"
	default:
		return nil
	}
	return field.ErrorList{field.Invalid(path, nic.MacAddress, problem)}
}

func validatePorts(list []v1.Port, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, port := range list {
		p := path.Index(i)
		if port.Port < 1 || port.Port > 65535 {
			errs = append(errs, field.Invalid(p.Child("port"), port.Port, "must be between 1 and 65535"))
		}
		errs = append(errs, oneOf(port.Protocol, p.Child("protocol"), "TCP", "UDP")...)
		if port.Name == "" {
			continue
		}
		// Named ports become ports of the pod's container.
		for _, message := range utilvalidation.IsValidPortName(port.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), port.Name, message))
		}
		if names.Has(port.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), port.Name))
		}
		names.Insert(port.Name)
	}
	return errs
}

// maxDHCPTotal leaves room in an answer, which is one packet, for the lease itself.
const maxDHCPTotal = 600

// maxDHCPText is what the length byte of a DHCP option can say.
const maxDHCPText = 255

func validateDHCP(o *v1.DHCPOptions, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	text := func(value string, p *field.Path) {
		if len(value) > maxDHCPText || strings.ContainsRune(value, 0) {
			errs = append(errs, field.Invalid(p, value, fmt.Sprintf("must be at most %d bytes without NUL", maxDHCPText)))
		}
	}
	text(o.BootFileName, path.Child("bootFileName"))
	text(o.TFTPServerName, path.Child("tftpServerName"))
	for i, server := range o.NTPServers {
		if a, err := netip.ParseAddr(server); err != nil || !a.Is4() {
			errs = append(errs, field.Invalid(path.Child("ntpServers").Index(i), server, "must be an IPv4 address"))
		}
	}
	seen := sets.New[int]()
	total := len(o.BootFileName) + len(o.TFTPServerName) + 4*len(o.NTPServers)
	for i, option := range o.PrivateOptions {
		p := path.Child("privateOptions").Index(i)
		if option.Option < 224 || option.Option > 254 {
			errs = append(errs, field.Invalid(p.Child("option"), option.Option, "must be between 224 and 254"))
		}
		if seen.Has(option.Option) {
			errs = append(errs, field.Duplicate(p.Child("option"), option.Option))
		}
		seen.Insert(option.Option)
		if option.Value == "" {
			errs = append(errs, field.Required(p.Child("value"), "an option has a value"))
		}
		text(option.Value, p.Child("value"))
		total += 2 + len(option.Value)
	}
	if total > maxDHCPTotal {
		errs = append(errs, field.TooLong(path, "", maxDHCPTotal))
	}
	return errs
}

// validateAbsent allows absent where KubeVirt does. The messages are KubeVirt's.
func validateAbsent(nic *v1.Interface, network v1.Network, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if nic.State != v1.LinkAbsent {
		return nil
	}
	if nic.Bridge == nil {
		errs = append(errs, field.Invalid(path, nic.State,
			fmt.Sprintf("%q interface's state %q is supported only for bridge binding", nic.Name, nic.State)))
	}
	if network.IsPods() {
		errs = append(errs, field.Invalid(path, nic.State,
			fmt.Sprintf("%q interface's state %q is not supported on default networks", nic.Name, nic.State)))
	}
	return errs
}

// refuseAbsent refuses absent in a VirtualMachineInstance, whose interfaces stay as they are.
func refuseAbsent(spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, nic := range spec.Domain.Devices.Interfaces {
		if nic.State == v1.LinkAbsent {
			errs = append(errs, field.Forbidden(path.Child("domain", "devices", "interfaces").Index(i).Child("state"),
				"only the template of a VirtualMachine can have an absent interface: leave the interface and its network out"))
		}
	}
	return errs
}

// passtMAC is the address of the gateway that passt shows the guest, passt's default.
const passtMAC = "9a:55:9a:55:9a:55"

// validateSRIOV refuses what a network card of the node cannot be. connected says whether the interface has a network.
func validateSRIOV(nic *v1.Interface, network v1.Network, connected bool, path *field.Path) field.ErrorList {
	if nic.SRIOV == nil {
		return nil
	}
	var errs field.ErrorList
	if connected && (network.Multus == nil || network.IsPods()) {
		errs = append(errs, field.Forbidden(path.Child("sriov"), "sriov is for a network of multus beside the pod's own: "+
			"its NetworkAttachmentDefinition names the resource of the cards"))
	}
	if nic.Model != "" && nic.Model != "virtio" {
		errs = append(errs, field.Forbidden(path.Child("model"),
			"the guest sees the card of the node, whose model it is: leave the model out"))
	}
	if nic.State == v1.LinkUp || nic.State == v1.LinkDown {
		errs = append(errs, field.Invalid(path.Child("state"), nic.State,
			fmt.Sprintf("%q interface's state %q is not supported for SR-IOV NICs", nic.Name, nic.State)))
	}
	return errs
}
