package resolve

import (
	"fmt"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// pins are the places that the spec gives to devices. The layout gives them to no other device.
type pins map[v1.PCIPlace]bool

// pinsOf returns those of a valid spec.
func pinsOf(d *v1.Devices) pins {
	p := pins{}
	add := func(address string) {
		if place, err := v1.ParsePCIAddress(address); err == nil {
			p[place] = true
		}
	}
	for i := range d.Disks {
		if d.Disks[i].Disk != nil {
			add(d.Disks[i].Disk.PciAddress)
		}
	}
	for i := range d.Interfaces {
		add(d.Interfaces[i].PciAddress)
	}
	return p
}

func (p pins) has(place v1.PCIPlace) bool { return p[place] }

// pin returns the place that a valid address names.
func (a *allocator) pin(address string) qemuargs.PCIAddress {
	place, err := v1.ParsePCIAddress(address)
	if err != nil || place.Bus == 0 {
		return integrated(place.Slot)
	}
	return qemuargs.PCIAddress{Bus: rootPortID(int(place.Bus))}
}

// pinOf returns the place of an address that the Machine has.
func pinOf(address qemuargs.PCIAddress) v1.PCIPlace {
	var port uint8
	if _, err := fmt.Sscanf(address.Bus, "pci.%d", &port); err == nil {
		return v1.PCIPlace{Bus: port}
	}
	return v1.PCIPlace{Slot: address.Slot}
}
