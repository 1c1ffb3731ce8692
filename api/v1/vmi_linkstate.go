package v1

import (
	"slices"

	"k8s.io/utils/ptr"
)

// InterfaceState is the state of a card's link.
type InterfaceState string

// KubeVirt's states of links. An interface without one has LinkUp.
const (
	LinkUp     InterfaceState = "up"
	LinkDown   InterfaceState = "down"
	LinkAbsent InterfaceState = "absent" // the next start leaves the interface out
)

// Link returns the state in which the card's link is to be: LinkUp or LinkDown.
func (n *Interface) Link() InterfaceState {
	if n.State == LinkDown {
		return LinkDown
	}
	return LinkUp
}

// dropAbsent leaves out the absent interfaces and their networks.
func dropAbsent(spec *VirtualMachineInstanceSpec) {
	absent := map[string]bool{}
	for _, nic := range spec.Domain.Devices.Interfaces {
		absent[nic.Name] = absent[nic.Name] || nic.State == LinkAbsent
	}
	devices := &spec.Domain.Devices
	before := len(devices.Interfaces)
	devices.Interfaces = slices.DeleteFunc(devices.Interfaces, func(n Interface) bool { return absent[n.Name] })
	spec.Networks = slices.DeleteFunc(spec.Networks, func(n Network) bool { return absent[n.Name] })
	if before > 0 && len(devices.Interfaces) == 0 && devices.AutoattachPodInterface == nil {
		devices.AutoattachPodInterface = ptr.To(false) // the pod's network is not to come in their place
	}
}

// tellsLink reports whether virt-handler tells the state of an interface's link, and so can change that state.
func (s *VirtualMachineInstanceStatus) tellsLink(name string) bool {
	return slices.ContainsFunc(s.Interfaces,
		func(i NetworkInterfaceStatus) bool { return i.Name == name && i.LinkState != "" })
}

// Interface returns the interface of a name, or nil.
func (d *Devices) Interface(name string) *Interface {
	i := slices.IndexFunc(d.Interfaces, func(n Interface) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &d.Interfaces[i]
}
