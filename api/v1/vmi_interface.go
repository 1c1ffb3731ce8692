package v1

import (
	"net"
	"net/netip"

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

// ParseNetwork reads a network of a pod. An IPv4 address may have leading zeros, as in KubeVirt: 10.10.010.0/24 is
// 10.10.10.0/24. Go refuses such an address, because some programs take it for an octal number.
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
