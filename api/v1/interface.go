package v1

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"
)

// Interface connects the guest to a network. Exactly one binding is set; in a VirtualMachine a
// preference may set it.
//
// +kubebuilder:validation:XValidation:rule="[has(self.masquerade), has(self.bridge), has(self.sriov), has(self.passtBinding), has(self.binding), has(self.slirp), has(self.macvtap), has(self.passt)].filter(b, b).size() <= 1",message="exactly one binding must be set (supported: bridge, masquerade, sriov, passtBinding, binding)"
type Interface struct {
	// Name of the network it connects to.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9-_]+$`
	Name string `json:"name"`
	// Model of the card. Default: virtio.
	// +optional
	// +kubebuilder:validation:Enum=virtio;e1000;e1000e;rtl8139
	Model string `json:"model,omitempty"`
	// MacAddress of the guest's interface. Default: with bridge on the pod network the pod
	// interface's, else made from the object's UID.
	// +optional
	// +kubebuilder:validation:MaxLength=17
	// +kubebuilder:validation:Pattern=`^[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}$`
	MacAddress string `json:"macAddress,omitempty"`
	// BootOrder: the device (disk or interface) with the lowest number is booted first. If any
	// has a number, others are not tried. Each number is unique. An interface boots by PXE.
	// +optional
	// +kubebuilder:validation:Minimum=1
	BootOrder *uint32 `json:"bootOrder,omitempty"`
	// Ports that masquerade and passtBinding forward from the pod's address to the guest. Default: all. With
	// bridge, all ports are the guest's. The pod shows the listed ports of its own network.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Ports []Port `json:"ports,omitempty"`
	// DHCPOptions that the guest is told besides its lease.
	// +optional
	DHCPOptions *DHCPOptions `json:"dhcpOptions,omitempty"`

	// Bridge: on the pod network the guest takes over the pod's address, by DHCP, IPv4 only. On
	// a network of Multus the guest is on that network, with the address that the network's IPAM
	// gives, or, without IPAM, with any.
	// +optional
	Bridge *InterfaceBridge `json:"bridge,omitempty"`
	// Masquerade: the guest has a private address behind the pod's, with NAT. Only on the pod
	// network.
	// +optional
	Masquerade *InterfaceMasquerade `json:"masquerade,omitempty"`
	// PasstBinding: passt makes the guest's connections anew from the pod.
	// +optional
	PasstBinding *InterfacePasstBinding `json:"passtBinding,omitempty"`

	// SRIOV: the guest gets a network card of the node by VFIO, and does not migrate.
	// +optional
	SRIOV *InterfaceSRIOV `json:"sriov,omitempty"`
	// Binding by a plugin of the KubeVirt object, of domainAttachmentType managedTap.
	// +optional
	Binding *PluginBinding `json:"binding,omitempty"`
	// Slirp is never supported: KubeVirt took it away; use passtBinding.
	// +optional
	Slirp *Never `json:"slirp,omitempty" never:"KubeVirt took it away; use passtBinding"`
	// Macvtap is never supported: KubeVirt took it away; use bridge with Multus.
	// +optional
	Macvtap *Never `json:"macvtap,omitempty" never:"KubeVirt took it away; use bridge with Multus"`
	// Passt is never supported: it is passtBinding now.
	// +optional
	Passt *Never `json:"passt,omitempty" never:"it is passtBinding now"`
	// PciAddress is the card's place, as 0000:BB:SS.0 in hex: a slot of the root bus (BB is 00), or the slot 00 of the bus
	// behind a root port (BB is 01 to 20), which takes no e1000 and no rtl8139. Default: the next place that is free.
	// +optional
	// +kubebuilder:validation:MaxLength=12
	// +kubebuilder:validation:Pattern=`^([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7])?$`
	PciAddress string `json:"pciAddress,omitempty"`
	// ACPIIndex is the number of the card that ACPI tells the guest, from 1 to 16383: systemd calls the interface eno1 for
	// the number 1. Each number once. Default: none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16383
	ACPIIndex int `json:"acpiIndex,omitempty"`
	// PortRanges are refused: not supported yet: list single ports, or none, which forwards all.
	// +optional
	PortRanges UnsupportedList `json:"portRanges,omitempty" later:"list single ports, or none, which forwards all"`
	// Tag is what a cloud-init ConfigDrive (cloudInitConfigDrive) tells the guest about the interface, with its place. Without a ConfigDrive it has no effect.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Tag string `json:"tag,omitempty"`
	// State of the card's link: up, or down, as with a cable that is pulled. A running guest follows a
	// change in the template of its VirtualMachine. absent, in such a template only: from the next start
	// on the VirtualMachineInstance has neither the interface nor its network; for binding bridge, and
	// not for the pod's own network. Default: up.
	// +optional
	// +kubebuilder:validation:Enum=up;down;absent
	State InterfaceState `json:"state,omitempty"`
}

var (
	interfaceModels = []string{"virtio", "e1000", "e1000e", "rtl8139"}
	bindingRule     = "exactly one binding must be set (supported: bridge, masquerade, sriov, passtBinding, binding)"
)

// InterfaceBridge is the binding by which the guest takes the pod's place on a network.
type InterfaceBridge struct{}

// InterfaceMasquerade is the NAT binding.
type InterfaceMasquerade struct{}

// InterfaceSRIOV is the binding by which the guest gets a network card of the node.
type InterfaceSRIOV struct{}

// PluginBinding is a binding that the KubeVirt object registers.
type PluginBinding struct {
	// Name of the plugin in configuration.network.binding.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Port of the guest.
type Port struct {
	// Name of the port.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	Name string `json:"name,omitempty"`
	// Protocol is TCP or UDP. Default: TCP.
	// +optional
	// +kubebuilder:validation:Enum=TCP;UDP
	Protocol string `json:"protocol,omitempty"`
	// Port is its number.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// DHCPOptions are further options of the DHCP server's answers.
type DHCPOptions struct {
	// BootFileName is option 67.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	BootFileName string `json:"bootFileName,omitempty"`
	// TFTPServerName is option 66.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	TFTPServerName string `json:"tftpServerName,omitempty"`
	// NTPServers is option 42: IPv4 addresses.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	NTPServers []string `json:"ntpServers,omitempty"`
	// PrivateOptions are options 224 to 254.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=31
	PrivateOptions []DHCPPrivateOptions `json:"privateOptions,omitempty"`
}

// DHCPPrivateOptions is one option of private use.
type DHCPPrivateOptions struct {
	// Option is the option's number.
	// +kubebuilder:validation:Minimum=224
	// +kubebuilder:validation:Maximum=254
	Option int `json:"option"`
	// Value is the option's text.
	// +kubebuilder:validation:MaxLength=255
	Value string `json:"value"`
}

// Network an interface connects to. Exactly one source is set.
type Network struct {
	// Name of the network; an interface refers to it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Pod is the pod's own network.
	// +optional
	Pod *PodNetwork `json:"pod,omitempty"`
	// Multus is a network that Multus connects the pod to, beside the pod's own or in its place.
	// +optional
	Multus *MultusNetwork `json:"multus,omitempty"`

	// ResourceClaim is refused: not supported yet: no device of the node is offered to pods yet.
	// +optional
	ResourceClaim *Unsupported `json:"resourceClaim,omitempty" later:"no device of the node is offered to pods yet"`
}

// PodNetwork is the pod's own network.
type PodNetwork struct {
	// VMNetworkCIDR is the guest's private IPv4 network with masquerade, /8 to /29. The gateway
	// has its first address, the guest its second. Default: 10.0.2.0/24.
	// +optional
	// +kubebuilder:validation:MaxLength=18
	VMNetworkCIDR string `json:"vmNetworkCIDR,omitempty"`

	// VMIPv6NetworkCIDR is the guest's private IPv6 network with masquerade, /48 to /126, in a pod
	// that has an IPv6 address. The gateway has its first address, the guest its second. Default:
	// fd10:0:2::/120.
	// +optional
	// +kubebuilder:validation:MaxLength=43
	VMIPv6NetworkCIDR string `json:"vmIPv6NetworkCIDR,omitempty"`
}

// MultusNetwork is a network of a NetworkAttachmentDefinition.
type MultusNetwork struct {
	// NetworkName of the NetworkAttachmentDefinition: its name, in the namespace of the VMI, or
	// namespace/name. Multus decides whether the pod may use it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	NetworkName string `json:"networkName"`
	// Default: the network is the pod's own, in place of the cluster's. At most one network is
	// so, and then none is the pod's.
	// +optional
	Default bool `json:"default,omitempty"`
}

// defaultInterfaces: a VMI that lists neither networks nor interfaces is on the
// pod network, by a bridge (KubeVirt's defaultNetworkInterface).
func defaultInterfaces(spec *VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	if len(devices.Interfaces) == 0 && len(spec.Networks) == 0 && ptr.Deref(devices.AutoattachPodInterface, true) {
		devices.Interfaces = []Interface{{Name: "default", Bridge: &InterfaceBridge{}}}
		spec.Networks = []Network{{Name: "default", Pod: &PodNetwork{}}}
	}
	for i := range devices.Interfaces {
		nic := &devices.Interfaces[i]
		if nic.Model == "" {
			nic.Model = "virtio"
		}
		for j := range nic.Ports {
			if nic.Ports[j].Protocol == "" {
				nic.Ports[j].Protocol = "TCP"
			}
		}
	}
	for i := range spec.Networks {
		if pod := spec.Networks[i].Pod; pod != nil && pod.VMNetworkCIDR == "" {
			pod.VMNetworkCIDR = "10.0.2.0/24"
		}
	}
}

// maxInterfaces is how many cards fit into the machine beside its disks. It is checked before a pod
// is connected to as many networks.
const maxInterfaces = 31

func validateNetworks(spec *VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	devices := &spec.Domain.Devices
	nics := path.Child("domain", "devices", "interfaces")
	networks, connected, links := map[string]Network{}, sets.New[string](), map[string]int{}
	first := -1 // the network that is the pod's own
	for i, n := range spec.Networks {
		p := path.Child("networks").Index(i)
		if _, ok := networks[n.Name]; ok {
			errs = append(errs, field.Duplicate(p.Child("name"), n.Name))
		}
		networks[n.Name] = n
		errs = append(errs, validateNetwork(n, p)...)
		// Of names with one sum, one would decide what the other's guest interface is connected to.
		if other, ok := links[n.Link()]; ok && !n.IsPods() && spec.Networks[other].Name != n.Name {
			errs = append(errs, field.Invalid(p.Child("name"), n.Name, "gives the pod's interface the same name, "+n.Link()+", as spec.networks["+strconv.Itoa(other)+"].name does: choose another name"))
		}
		links[n.Link()] = i
		switch {
		case !n.IsPods():
		case first < 0:
			first = i
		case n.Pod != nil:
			errs = append(errs, field.Forbidden(p.Child("pod"), "only one network can be the pod's, and spec.networks["+strconv.Itoa(first)+"] is"))
		default:
			errs = append(errs, field.Forbidden(p.Child("multus", "default"), "only one network can be the pod's, and spec.networks["+strconv.Itoa(first)+"] is"))
		}
	}
	if n := len(devices.Interfaces); n > maxInterfaces {
		errs = append(errs, field.TooMany(nics, n, maxInterfaces))
	}
	for i, nic := range devices.Interfaces {
		p := nics.Index(i)
		if connected.Has(nic.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), nic.Name))
		}
		connected.Insert(nic.Name)
		if !interfaceName.MatchString(nic.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), nic.Name, "must be at most 63 letters, digits, '-' and '_'"))
		}
		network, ok := networks[nic.Name]
		if !ok {
			errs = append(errs, field.NotFound(p.Child("name"), nic.Name+" (no network of this name in spec.networks)"))
		}
		if nic.Masquerade != nil && network.Multus != nil && network.Pod == nil {
			errs = append(errs, field.Forbidden(p.Child("masquerade"), "masquerade is for the pod network only; a network of multus takes bridge"))
		}
		errs = append(errs, validateSRIOV(&nic, network, ok, p)...)
		if nic.PasstBinding != nil && network.Multus != nil && network.Pod == nil {
			errs = append(errs, field.Forbidden(p.Child("passtBinding"), "passtBinding is for the pod network only; a network of multus takes bridge"))
		}
		errs = append(errs, validateInterface(&nic, p)...)
		errs = append(errs, validateAbsent(&nic, network, p.Child("state"))...)
	}
	for i, n := range spec.Networks {
		if !connected.Has(n.Name) {
			errs = append(errs, field.Invalid(path.Child("networks").Index(i).Child("name"), n.Name, "no interface of this name in spec.domain.devices.interfaces"))
		}
	}
	return errs
}

func validateNetwork(n Network, path *field.Path) field.ErrorList {
	switch {
	case n.Pod != nil && n.Multus != nil:
		return field.ErrorList{field.Forbidden(path.Child("multus"), "exactly one network source must be set, and pod is")}
	case n.Multus != nil:
		return validateMultus(n.Multus, path.Child("multus"))
	case n.Pod == nil && n.ResourceClaim != nil:
		return nil // reported as not supported
	case n.Pod == nil:
		return field.ErrorList{field.Required(path.Child("pod"), "exactly one network source must be set (supported: pod, multus)")}
	}
	cidr := path.Child("pod", "vmNetworkCIDR")
	prefix, err := ParseNetwork(n.Pod.VMNetworkCIDR)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(cidr, n.Pod.VMNetworkCIDR, "must be an IPv4 network such as 10.0.2.0/24")}
	case prefix.Addr().IsLoopback() || prefix.Addr().IsMulticast() || prefix.Addr().IsUnspecified():
		return field.ErrorList{field.Invalid(cidr, n.Pod.VMNetworkCIDR, "must be a unicast network")}
	case !prefix.Addr().Is4() || prefix.Masked() != prefix || prefix.Bits() > 29 || prefix.Bits() < 8:
		return field.ErrorList{field.Invalid(cidr, n.Pod.VMNetworkCIDR, "must be an IPv4 network address with a prefix length between 8 and 29")}
	}
	return validateIPv6Network(n.Pod.VMIPv6NetworkCIDR, path.Child("pod", "vmIPv6NetworkCIDR"))
}

// ParseNetwork reads a network of a pod. An IPv4 address may have leading zeros, as in KubeVirt: 10.10.010.0/24 is 10.10.10.0/24. Go refuses
// such an address, because some programs take it for an octal number.
func ParseNetwork(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err == nil {
		return prefix, nil
	}
	ip, network, sloppy := netutils.ParseCIDRSloppy(text)
	if sloppy != nil || len(network.Mask) != net.IPv4len {
		return netip.Prefix{}, err
	}
	bits, _ := network.Mask.Size()
	return netip.PrefixFrom(netip.AddrFrom4([net.IPv4len]byte(ip.To4())), bits), nil
}

// validateIPv6Network allows none, and networks that have room for a gateway and a guest.
func validateIPv6Network(network string, path *field.Path) field.ErrorList {
	if network == "" {
		return nil
	}
	prefix, err := netip.ParsePrefix(network)
	addr := prefix.Addr()
	switch {
	case err != nil || !addr.Is6() || addr.Is4In6():
		return field.ErrorList{field.Invalid(path, network, "must be an IPv6 network such as fd10:0:2::/120")}
	case addr.IsLoopback() || addr.IsMulticast() || addr.IsLinkLocalUnicast() || addr.IsUnspecified():
		return field.ErrorList{field.Invalid(path, network, "must be a unicast network, and not a link-local one")}
	case prefix.Masked() != prefix || prefix.Bits() < 48 || prefix.Bits() > 126:
		return field.ErrorList{field.Invalid(path, network, "must be an IPv6 network address with a prefix length between 48 and 126")}
	}
	return nil
}

func validateMultus(m *MultusNetwork, path *field.Path) field.ErrorList {
	path = path.Child("networkName")
	if m.NetworkName == "" {
		return field.ErrorList{field.Required(path, "the name of a NetworkAttachmentDefinition, or namespace/name")}
	}
	namespace, name, both := strings.Cut(m.NetworkName, "/")
	if !both {
		namespace, name = "", m.NetworkName
	}
	var errs field.ErrorList
	if both {
		for _, message := range validation.IsDNS1123Label(namespace) {
			errs = append(errs, field.Invalid(path, m.NetworkName, "the namespace: "+message))
		}
	}
	for _, message := range validation.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(path, m.NetworkName, "the name: "+message))
	}
	return errs
}

func validateInterface(nic *Interface, path *field.Path) field.ErrorList {
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
	errs = append(errs, oneOf(nic.State, path.Child("state"), "", LinkUp, LinkDown, LinkAbsent)...)
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
		errs = append(errs, field.Forbidden(path.Child("dhcpOptions"), "passt's DHCP server has no further options; masquerade has them"))
	case !nic.MayServe():
		errs = append(errs, field.Forbidden(path.Child("dhcpOptions"), "no DHCP server of the pod serves an interface with sriov or binding: the network's own server has to say the options"))
	}
	return errs
}

func validateMAC(nic *Interface, path *field.Path) field.ErrorList {
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

func validatePorts(list []Port, path *field.Path) field.ErrorList {
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
		for _, message := range validation.IsValidPortName(port.Name) {
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

func validateDHCP(o *DHCPOptions, path *field.Path) field.ErrorList {
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
