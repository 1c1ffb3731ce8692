package local

import (
	"fmt"
	"net/netip"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// userMTU is what QEMU's network inside itself takes (IF_MTU_DEFAULT in libslirp's libslirp.h).
const userMTU = 1500

// network describes the network inside QEMU for an interface. The guest has the addresses that
// masquerade gives it in a pod.
func network(vmi *v1.VirtualMachineInstance, nic v1.Interface, forwards []qemuargs.Forward) (resolve.NIC, error) {
	prefix := netip.MustParsePrefix("10.0.2.0/24") // masquerade's default, as in package netsetup
	for _, n := range vmi.Spec.Networks {
		if n.Name == nic.Name && n.Pod != nil && n.Pod.VMNetworkCIDR != "" {
			var err error
			if prefix, err = v1.ParseNetwork(n.Pod.VMNetworkCIDR); err != nil {
				return resolve.NIC{}, fmt.Errorf("read the network of interface %s: %w", nic.Name, err)
			}
		}
	}
	// QEMU wants three addresses between the network's and that for broadcasts.
	if !prefix.Addr().Is4() || prefix.Bits() > 29 || prefix != prefix.Masked() {
		return resolve.NIC{}, fmt.Errorf("make the network of interface %s: QEMU takes an IPv4 network of at most 29 bits without host part, not %s", nic.Name, prefix)
	}
	router := prefix.Addr().Next()
	guest := router.Next()
	return resolve.NIC{MTU: userMTU, User: &qemuargs.UserNetwork{Network: prefix, Router: router, Guest: guest, DNS: guest.Next(),
		Hostname: vmi.GuestHostname(), Forwards: forwards}}, nil
}

// networkNotes say what of the VM's network is not as in a cluster.
func networkNotes(m *qemuargs.Machine, vmi *v1.VirtualMachineInstance) []string {
	var out []string
	for i, nic := range m.NICs {
		if vmi.Spec.Domain.Devices.Interfaces[i].SRIOV != nil {
			out = append(out, fmt.Sprintf("interface %s is a virtio card here, and no card of the node", nic.Name))
		}
		for _, f := range nic.User.Forwards {
			out = append(out, fmt.Sprintf("%s port %d of %s leads to port %d of the guest", f.Protocol, f.Port, f.Address, f.GuestPort))
		}
		if network := vmi.Spec.Network(nic.Name); network != nil && network.Multus != nil {
			out = append(out, fmt.Sprintf("interface %s is on a network of its own here, and not on %s", nic.Name, network.Multus.NetworkName))
		}
		if nic.Queues > 1 {
			out = append(out, fmt.Sprintf("interface %s has %d queues, and the network here serves one of them", nic.Name, nic.Queues))
		}
		if vmi.Spec.Domain.Devices.Interfaces[i].DHCPOptions != nil {
			out = append(out, fmt.Sprintf("interface %s: the network here tells the guest no dhcpOptions", nic.Name))
		}
	}
	return out
}
