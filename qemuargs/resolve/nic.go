package resolve

import (
	"fmt"
	"net"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

var nicDrivers = map[string]string{
	"virtio":  "virtio-net-pci-non-transitional",
	"e1000":   "e1000",
	"e1000e":  "e1000e",
	"rtl8139": "rtl8139",
}

// queueSize is the number of entries of a virtio queue: QEMU's default for machine types since
// 5.0. It is written down because 10.0 makes it 1024.
const queueSize = 256

// maxQueues of an interface, and maxQueuesOfAll interfaces: each is a file that is handed to the
// launcher, two with vhost-net, and a message brings 253 at most (launcher/control), of which
// each interface may need one for DHCP.
const (
	maxQueues      = 32
	maxQueuesOfAll = 96
)

// nics adds the network cards.
func nics(b *build) {
	for i, nic := range b.devices().Interfaces {
		n := card(b, nic)
		if nic.SRIOV != nil && n.User == nil && !qemuargs.IsPCIAddress(n.HostDevice) {
			b.errs = append(b.errs, field.Forbidden(field.NewPath("spec", "domain", "devices", "interfaces").Index(i).Child("sriov"),
				fmt.Sprintf("the pod has no network card of the node for it (%q): the resource of the "+
					"NetworkAttachmentDefinition is to be one of cards, by the SR-IOV device plugin", n.HostDevice)))
		}
		b.m.NICs = append(b.m.NICs, n)
	}
}

// card returns an interface's network card: a tap's, unless the interface or the host says otherwise.
func card(b *build, nic v1.Interface) qemuargs.NIC {
	facts := b.host.NICs[nic.Name]
	n := qemuargs.NIC{Name: nic.Name, Driver: nicDrivers[nic.Model], MAC: MAC(b.vmi, nic, facts), MTU: facts.MTU,
		Queues: Queues(b.vmi, nic), BootIndex: ptr.Deref(nic.BootOrder, 0), ACPIIndex: nic.ACPIIndex,
		User: facts.User, Down: nic.Link() == v1.LinkDown, RefreshLink: nic.Binding != nil && facts.RefreshLink}
	// AAVMF drives virtio cards itself, and QEMU's firmware for cards is for amd64.
	n.NoROM = b.vmi.Spec.Architecture == v1.ARM64 && n.BootIndex > 0
	if nic.SRIOV != nil && n.User == nil {
		n.Driver, n.HostDevice, n.MTU, n.Queues = "vfio-pci", facts.Device, 0, 0
	}
	if n.IsVirtio() {
		n.QueueSize = queueSize
		n.NoUSO, n.NoTunnels = !b.board.before(version82), !b.board.before(version102)
		// Without KVM each notification between the guest and the kernel goes through QEMU anyway; libvirt does not use
		// vhost-net then either.
		n.Vhost = b.host.VhostNet && b.host.Accelerator == qemuargs.KVM
	}
	if nic.PasstBinding != nil && n.User == nil {
		// passt tells the guest its MTU, and no packet of the guest's leaves the pod.
		n.Passt, n.MTU, n.Vhost = layout.Below(b.host.Root, layout.PasstSocket(nic.Name)), 0, false
	}
	transitional := b.devices().Transitional()
	if transitional && n.IsVirtio() {
		n.Driver = "virtio-net-pci-transitional"
	}
	part := partOf("nics", nic.Name)
	switch {
	case nic.PciAddress != "":
		n.PCI = b.slots.pin(nic.PciAddress)
	case nic.Conventional(transitional):
		n.PCI = b.slots.integrate(part)
	default:
		n.PCI = b.slots.plug(part)
	}
	return n
}

// Queues returns the number of an interface's queues: one, unless a virtio card shall have one for each virtual CPU.
func Queues(vmi *v1.VirtualMachineInstance, nic v1.Interface) int {
	domain := &vmi.Spec.Domain
	many := func(nic v1.Interface) bool { return nic.Model == "virtio" && nic.SRIOV == nil }
	if nic.PasstBinding != nil || !many(nic) || !ptr.Deref(domain.Devices.NetworkInterfaceMultiQueue, false) {
		return 1
	}
	virtio := 0
	for _, other := range domain.Devices.Interfaces {
		if many(other) {
			virtio++
		}
	}
	return int(min(domain.CPU.VCPUs(), maxQueues, max(int64(maxQueuesOfAll/max(virtio, 1)), 1)))
}

// MAC returns the hardware address of an interface: first the spec's. Else, with a bridge to the pod
// network, the pod interface's own, because networks may let only that address pass. Else it is
// made from the object's UID under QEMU's prefix, so that it stays the same.
func MAC(vmi *v1.VirtualMachineInstance, nic v1.Interface, host NIC) string {
	if mac, err := net.ParseMAC(nic.MacAddress); err == nil {
		return mac.String()
	}
	if nic.IsBridged() && host.MAC != "" && vmi.Spec.OnPods(nic.Name) {
		return host.MAC
	}
	return v1.MAC(vmi.UID, nic.Name)
}
