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

// queueSizeRule is its reason, in short.
const queueSizeRule = "QEMU's own number, written down because later releases have another"

// noOffload is the reason why offloads are off.
const noOffload = "QEMU would ask the host's kernel for the offload: without it the guest can run on any host"

// vhostRule is the reason for vhost-net. Without KVM each notification between the guest and
// the kernel goes through QEMU anyway; libvirt does not use vhost-net then either.
const vhostRule = "with KVM the node's kernel moves the packets of a virtio card, if it can"

// interfaces is the list in the VMI.
const interfaces = "spec.domain.devices.interfaces"

func nics(vmi *v1.VirtualMachineInstance, host Host, board version, slots *allocator, why *Decisions) []qemuargs.NIC {
	var out []qemuargs.NIC
	for i, nic := range vmi.Spec.Domain.Devices.Interfaces {
		by := entry{to: why, list: "nics", name: nic.Name, field: interfaces, index: i}
		n := qemuargs.NIC{
			Name: nic.Name, Driver: nicDrivers[nic.Model], MAC: mac(vmi, nic, host.NICs[nic.Name], by),
			MTU: host.NICs[nic.Name].MTU, Queues: queues(vmi, nic, by), BootIndex: ptr.Deref(nic.BootOrder, 0), ACPIIndex: nic.ACPIIndex,
			User: host.NICs[nic.Name].User, Down: nic.Link() == v1.LinkDown,
		}
		by.add("", ".name", "each interface is a network card")
		by.add("name", ".name", "")
		by.add("driver", ".model", "")
		by.add("mtu", ".passtBinding host.nics[].mtu", "the MTU of the pod's link")
		by.add("bootIndex", ".bootOrder", "")
		by.add("acpiIndex", ".acpiIndex", "")
		by.add("vhost", ".model host.vhostNet host.accelerator", vhostRule)
		if vmi.Spec.Architecture == v1.ARM64 && n.BootIndex > 0 {
			by.add("noROM", ".bootOrder spec.architecture", "AAVMF drives virtio cards itself, and QEMU's firmware for cards is for amd64")
			n.NoROM = true
		}
		by.add("user", "host.nics[].user", "a tap, unless the host has no pod")
		by.add("passt", ".passtBinding", "")
		if nic.Binding != nil && host.NICs[nic.Name].RefreshLink {
			by.add("refreshLink", ".binding.name host.nics[].refreshLink", "the plugin's migration method is link-refresh")
			n.RefreshLink = true
		}
		if nic.SRIOV != nil && n.User == nil {
			by.add("driver", ".sriov", "VFIO gives the guest the card of the node")
			by.add("hostDevice", ".sriov host.nics[].device", "the card that the device plugin gave the pod for the network")
			n.Driver, n.HostDevice, n.MTU, n.Queues = "vfio-pci", host.NICs[nic.Name].Device, 0, 0
		}
		if n.IsVirtio() {
			n.QueueSize = queueSize
			by.add("queueSize", "", queueSizeRule)
			by.add("noUSO", "=type", noOffload)
			by.add("noTunnels", "=type", noOffload)
			n.NoUSO, n.NoTunnels = !board.before(version82), !board.before(version102)
			n.Vhost = host.VhostNet && host.Accelerator == qemuargs.KVM
		}
		if nic.PasstBinding != nil && n.User == nil {
			by.add("passt", ".passtBinding", "a program beside QEMU makes the guest's connections anew")
			by.add("user", "host.nics[].user", "passt, unless the host has no pod")
			by.add("mtu", ".passtBinding", "passt tells the guest its MTU, and no packet of the guest's leaves the pod")
			n.Passt, n.MTU, n.Vhost = layout.Below(host.Root, layout.PasstSocket(i)), 0, false
		}
		transitional := vmi.Spec.Domain.Devices.Transitional()
		if transitional && n.IsVirtio() {
			n.Driver = "virtio-net-pci-transitional"
			by.add("driver", ".model "+transitionalField, transitionalRule)
		}
		switch {
		case nic.PciAddress != "":
			by.add("pci", ".pciAddress", "")
			n.PCI = slots.pin(nic.PciAddress)
		case nic.Conventional(transitional):
			by.add("pci", interfaces+"[..].model "+transitionalField+" "+pinFields, nextSlot)
			n.PCI = slots.integrate()
		default:
			by.add("pci", interfaces+"[..].model "+transitionalField+" "+pinFields, nextPort)
			n.PCI = slots.plug()
		}
		out = append(out, n)
	}
	return out
}

// missingCards are the errors of interfaces for which the pod has no card of the node.
func missingCards(vmi *v1.VirtualMachineInstance, host Host) field.ErrorList {
	var errs field.ErrorList
	for i, nic := range vmi.Spec.Domain.Devices.Interfaces {
		facts := host.NICs[nic.Name]
		if nic.SRIOV != nil && facts.User == nil && !qemuargs.IsPCIAddress(facts.Device) {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "domain", "devices", "interfaces").Index(i).Child("sriov"),
				fmt.Sprintf("the pod has no network card of the node for it (%q): the resource of the NetworkAttachmentDefinition is to be one of cards, by the SR-IOV device plugin", facts.Device)))
		}
	}
	return errs
}

// Queues is the number of an interface's queues.
func Queues(vmi *v1.VirtualMachineInstance, nic v1.Interface) int {
	return queues(vmi, nic, entry{})
}

func queues(vmi *v1.VirtualMachineInstance, nic v1.Interface, by entry) int {
	domain := &vmi.Spec.Domain
	if nic.PasstBinding != nil {
		by.add("queues", ".passtBinding", "the connection to passt is one queue")
		return 1
	}
	if nic.Model != "virtio" || nic.SRIOV != nil || !ptr.Deref(domain.Devices.NetworkInterfaceMultiQueue, false) {
		by.add("queues", ".model .passtBinding spec.domain.devices.networkInterfaceMultiqueue", "one queue, unless a virtio card shall have more")
		return 1
	}
	by.add("queues", interfaces+"[*].model .passtBinding spec.domain.devices.networkInterfaceMultiqueue "+vcpus, "one queue for each virtual CPU, 32 at most, and 96 of all virtio cards")
	virtio := 0
	for _, other := range domain.Devices.Interfaces {
		if other.Model == "virtio" && other.SRIOV == nil {
			virtio++
		}
	}
	return int(min(domain.CPU.VCPUs(), maxQueues, max(int64(maxQueuesOfAll/max(virtio, 1)), 1)))
}

// MAC is the hardware address of an interface: first the spec's. Else, with a bridge to the pod
// network, the pod interface's own, because networks may let only that address pass. Else it is
// made from the object's UID under QEMU's prefix, so that it stays the same.
func MAC(vmi *v1.VirtualMachineInstance, nic v1.Interface, host NIC) string {
	return mac(vmi, nic, host, entry{})
}

func mac(vmi *v1.VirtualMachineInstance, nic v1.Interface, host NIC, by entry) string {
	if mac, err := net.ParseMAC(nic.MacAddress); err == nil {
		by.add("mac", ".macAddress", "")
		return mac.String()
	}
	if nic.IsBridged() && host.MAC != "" && vmi.Spec.OnPods(nic.Name) {
		by.add("mac", ".macAddress .bridge .binding.name spec.networks[*].multus.default host.nics[].mac", "the pod's own: with a bridge the pod network may let only that MAC pass")
		return host.MAC
	}
	by.add("mac", ".macAddress .bridge .binding.name spec.networks[*].multus.default metadata.uid .name host.nics[].mac", "made of the object's UID and the interface's name, so that it stays the same")
	return v1.MAC(vmi.UID, nic.Name)
}
