package resolve

import (
	"net"

	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
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

// maxQueues of an interface: each is a file descriptor that is handed to the
// launcher, and a message brings 253 at most (launcher/control).
const maxQueues = 32

func nics(vmi *v1.VirtualMachineInstance, host Host, board version, slots *allocator) []qemuargs.NIC {
	var out []qemuargs.NIC
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		n := qemuargs.NIC{
			Name: nic.Name, Driver: nicDrivers[nic.Model], MAC: MAC(vmi, nic, host.NICs[nic.Name]),
			MTU: host.NICs[nic.Name].MTU, Queues: Queues(vmi, nic), BootIndex: ptr.Deref(nic.BootOrder, 0),
			User: host.NICs[nic.Name].User,
		}
		if n.IsVirtio() {
			n.QueueSize = queueSize
			n.NoUSO, n.NoTunnels = !board.before(version82), !board.before(version102)
		}
		switch nic.Model {
		case "e1000", "rtl8139":
			n.PCI = slots.integrate()
		default:
			n.PCI = slots.plug()
		}
		out = append(out, n)
	}
	return out
}

// Queues is the number of an interface's queues.
func Queues(vmi *v1.VirtualMachineInstance, nic v1.Interface) int {
	domain := &vmi.Spec.Domain
	if nic.Model != "virtio" || !ptr.Deref(domain.Devices.NetworkInterfaceMultiQueue, false) {
		return 1
	}
	return int(min(domain.CPU.VCPUs(), maxQueues))
}

// MAC is the hardware address of an interface: first the spec's. Else, with the bridge binding,
// the pod interface's own, because networks may let only that address pass. Else it is made
// from the object's UID under QEMU's prefix, so that it stays the same.
func MAC(vmi *v1.VirtualMachineInstance, nic v1.Interface, host NIC) string {
	if mac, err := net.ParseMAC(nic.MacAddress); err == nil {
		return mac.String()
	}
	if nic.Bridge != nil && host.MAC != "" {
		return host.MAC
	}
	return v1.MAC(vmi.UID, nic.Name)
}
