package resolve

import (
	"fmt"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// The layout of pcie.0. Slot 0 is the host bridge and 0x1f the chipset.
const (
	graphicsSlot    = 0x01
	rootPortSlot    = 0x02 // to 0x05, eight functions each
	integratedSlot  = 0x10 // to 0x1b: conventional PCI devices
	lastIntegrated  = 0x1b
	maxRootPorts    = 32
	functionsPerDev = 8
)

// allocator hands out PCI addresses in the order it is asked, and keeps the
// first error-free count; rootPorts says whether all fitted.
type allocator struct {
	plugged    int
	integrated int
}

// plug takes the next root port: the place of a PCI Express device.
func (a *allocator) plug() qemuargs.PCIAddress {
	a.plugged++
	return qemuargs.PCIAddress{Bus: rootPortID(a.plugged)}
}

// integrate takes the next slot of pcie.0: the place of a conventional PCI
// device, which may not sit in an Express slot (QEMU docs/pcie.txt).
func (a *allocator) integrate() qemuargs.PCIAddress {
	a.integrated++
	return qemuargs.PCIAddress{Bus: "pcie.0", Slot: integratedSlot + uint8(a.integrated) - 1}
}

func rootPortID(n int) string { return fmt.Sprintf("pci.%d", n) }

// rootPorts are those that were taken and spare ones for hotplug: 8 in all and
// at least 3 free, or 16 and 6 where the guest has more than 2 GiB, as
// KubeVirt's pci-topology-version v3 has it.
func (a *allocator) rootPorts(memory int64) ([]qemuargs.RootPort, error) {
	total, free := 8, 3
	if memory > 2<<30 {
		total, free = 16, 6
	}
	total = min(max(total, a.plugged+free), maxRootPorts)
	if a.plugged > maxRootPorts {
		return nil, fmt.Errorf("%d PCI Express devices, at most %d fit; put some disks on bus sata", a.plugged, maxRootPorts)
	}
	if a.integrated > lastIntegrated-integratedSlot+1 {
		return nil, fmt.Errorf("%d conventional PCI devices, at most %d fit; use model virtio", a.integrated, lastIntegrated-integratedSlot+1)
	}
	ports := make([]qemuargs.RootPort, total)
	for i := range ports {
		ports[i] = qemuargs.RootPort{ID: rootPortID(i + 1), Chassis: uint8(i + 1), PCI: qemuargs.PCIAddress{
			Bus: "pcie.0", Slot: rootPortSlot + uint8(i/functionsPerDev), Function: uint8(i % functionsPerDev),
		}}
	}
	return ports, nil
}
