package v1

import (
	"fmt"
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

// withoutLinkStates returns a list of interfaces whose links have no state. It does not change the list.
func withoutLinkStates(interfaces []Interface) []Interface {
	out := slices.Clone(interfaces)
	for i := range out {
		out[i].State = ""
	}
	return out
}

// LinkUpdates returns the interfaces of a VirtualMachineInstance whose links are in other states than the VM's
// template says. live are those that the running guest can follow, staged is why another one needs a
// restart; empty if none does.
func (vm *VirtualMachine) LinkUpdates(vmi *VirtualMachineInstance, rollout RolloutStrategy) (
	live map[string]InterfaceState, staged string) {
	live = map[string]InterfaceState{}
	template := &vm.Spec.Template.Spec.Domain.Devices
	for i := range template.Interfaces {
		wanted := &template.Interfaces[i]
		has := vmi.Spec.Domain.Devices.Interface(wanted.Name)
		switch {
		case has == nil && wanted.State == LinkAbsent:
		case has == nil:
			staged = fmt.Sprintf("the template brings interface %s back; the change holds from the next start on", wanted.Name)
		case wanted.State == LinkAbsent:
			staged = fmt.Sprintf("the template says that interface %s is absent; the change holds from the next start on",
				wanted.Name)
		case wanted.Link() == has.Link():
		case rollout != RolloutLiveUpdate:
			staged = fmt.Sprintf("the template changes the link of interface %s; the change holds from the next start on",
				wanted.Name)
		case vmi.Status.Phase == Running && !vmi.Status.tellsLink(wanted.Name):
			staged = fmt.Sprintf("the template changes the link of interface %s, whose state virt-handler does not tell; the "+
				"change holds from the next start on", wanted.Name)
		default:
			live[wanted.Name] = wanted.State
		}
	}
	return live, staged
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
