package resolve

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// The layout of pcie.0. Slot 0 is the host bridge and 0x1f the chipset. A device that can be
// unplugged, or another like it plugged later, sits in a root port. A device that stays for the
// guest's life sits on pcie.0 itself, at a slot of its own, which stays free in a machine
// without that device: a root port costs QEMU 60 kB when it starts and 0.4 MB once the guest
// uses it, and costs the guest time at boot.
const (
	graphicsSlot   = 0x01
	rootPortSlot   = 0x02 // to 0x05, eight functions each
	balloonSlot    = 0x06
	rngSlot        = 0x07
	agentSlot      = 0x08
	usbSlot        = 0x09
	scsiSlot       = 0x0a
	watchdogSlot   = 0x0b
	ahciSlot       = 0x0c // to 0x0f, eight functions each
	integratedSlot = 0x10 // to 0x1b: conventional devices
	lastIntegrated = 0x1b
	panicSlot      = 0x1c
	soundSlot      = 0x1d

	maxRootPorts    = 32
	maxAHCI         = 32 // besides the chipset's
	functionsPerDev = 8
)

// integrated returns a place on pcie.0.
func integrated(slot uint8) qemuargs.PCIAddress {
	return qemuargs.PCIAddress{Bus: qemuargs.RootBus, Slot: slot}
}

// packed returns the n-th place, from 0, of slots with eight functions each.
func packed(slot uint8, n int) qemuargs.PCIAddress {
	return qemuargs.PCIAddress{Bus: "pcie.0", Slot: slot + uint8(n/functionsPerDev), Function: uint8(n % functionsPerDev)}
}

// allocator hands out PCI addresses in the order of the calls. rootPorts returns an error if
// they do not all fit.
type allocator struct {
	plugged    int // the highest port that is taken
	integrated int // slots that were passed
	pinned     pins
	// held are the places that the parts of a running machine have, and taken the same places.
	held  map[string]qemuargs.PCIAddress
	taken pins
}

// isFree reports whether neither the spec nor a running machine has given a place away.
func (a *allocator) isFree(place v1.PCIPlace) bool {
	return !a.pinned.has(place) && !a.taken.has(place)
}

// holds returns the place that a running machine's part has in a root port, or on the root bus.
func (a *allocator) holds(part string, plugged bool) (qemuargs.PCIAddress, bool) {
	at, ok := a.held[part]
	return at, ok && (at.Bus != qemuargs.RootBus) == plugged
}

// plug gives a part the root port that it has, or the next one.
func (a *allocator) plug(part string) qemuargs.PCIAddress {
	if at, ok := a.holds(part, true); ok {
		return at
	}
	for a.plugged++; !a.isFree(v1.PCIPlace{Bus: uint8(min(a.plugged, math.MaxUint8))}); a.plugged++ {
	}
	return qemuargs.PCIAddress{Bus: rootPortID(a.plugged)}
}

// integrate gives a part the slot that it has, or the next of the slots on pcie.0 that are not reserved for one device:
// conventional PCI devices may not sit in an Express slot (QEMU docs/pcie.txt).
func (a *allocator) integrate(part string) qemuargs.PCIAddress {
	if at, ok := a.holds(part, false); ok {
		return at
	}
	for a.integrated++; !a.isFree(v1.PCIPlace{Slot: integratedSlot + uint8(a.integrated) - 1}); a.integrated++ {
	}
	return integrated(integratedSlot + uint8(a.integrated) - 1)
}

func rootPortID(n int) string { return fmt.Sprintf("pci.%d", n) }

// rootPorts returns the taken ports, and spare ones for hotplug: 3, or 6 if the guest has more than
// 2 GiB, the least that KubeVirt's pci-topology-version v3 leaves free. KubeVirt's least number
// of ports in all, 8 or 16, counted devices that need no port here.
func (a *allocator) rootPorts(memory int64) ([]qemuargs.RootPort, error) {
	spare := 3
	if memory > 2<<30 {
		spare = 6
	}
	if a.plugged > maxRootPorts {
		return nil, fmt.Errorf("%d PCI Express devices, at most %d fit; put some disks on bus sata or scsi", a.plugged, maxRootPorts)
	}
	total := a.total(spare)
	if a.integrated > lastIntegrated-integratedSlot+1 {
		return nil, fmt.Errorf("%d conventional PCI cards and inputs on bus virtio, at most %d fit; use model virtio, and bus usb", a.integrated, lastIntegrated-integratedSlot+1)
	}
	ports := make([]qemuargs.RootPort, total)
	for i := range ports {
		ports[i] = qemuargs.RootPort{ID: rootPortID(i + 1), Chassis: uint8(i + 1), Spare: !a.takes(i + 1), PCI: packed(rootPortSlot, i)}
	}
	return ports, nil
}

// takes reports whether a device is in a root port.
func (a *allocator) takes(port int) bool {
	return port <= a.plugged || a.pinned.has(v1.PCIPlace{Bus: uint8(port)})
}

// total returns the number of root ports: all that are taken, and spare ones as far as they fit.
func (a *allocator) total(spare int) int {
	total := a.plugged
	for place := range a.pinned {
		total = max(total, int(place.Bus))
	}
	for port := 1; port <= total; port++ {
		if !a.takes(port) {
			spare--
		}
	}
	return min(total+max(spare, 0), maxRootPorts)
}

// giveWay moves devices that have a slot of their own on the root bus to free slots, where the spec gives their slot to
// another device.
func (a *allocator) giveWay(m *qemuargs.Machine, path *field.Path) field.ErrorList {
	taken, moved := pins{}, []qemuargs.Place{}
	for place := range a.pinned {
		taken[place] = true
	}
	for _, p := range m.Places() {
		slot := v1.PCIPlace{Slot: p.Address.Slot}
		switch {
		case p.Address.Bus != "pcie.0":
		case a.pinned.has(slot) && p.Single:
			moved = append(moved, p)
		default:
			taken[slot] = true
		}
	}
	free := uint8(lastSlot)
	for _, p := range moved {
		for ; free >= integratedSlot && taken.has(v1.PCIPlace{Slot: free}); free-- {
		}
		if free < integratedSlot {
			return field.ErrorList{field.Invalid(path, "", fmt.Sprintf("no slot of the root bus is left for %s, whose own a pciAddress takes", p.Part))}
		}
		p.Address.Slot = free
		free--
	}
	return nil
}

// lastSlot of the root bus before the chipset's.
const lastSlot = 0x1e

// partOf returns the path of an entry of a list of the Machine.
func partOf(list, name string) string { return list + "[" + name + "]" }
