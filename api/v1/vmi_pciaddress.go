package v1

import (
	"fmt"
	"regexp"
	"strconv"
)

// PCIPlace is a place that the spec gives a device: a PCI slot of the root bus, or a root port.
type PCIPlace struct {
	// Bus is 0 for the root bus (pcie.0), and else the number of a root port: bus 3 is behind the port pci.3.
	Bus uint8
	// Slot of the root bus. A root port has the slot 0 alone.
	Slot uint8
}

// MaxRootPorts is the number of root ports that a machine can have.
const MaxRootPorts = 32

var pciAddress = regexp.MustCompile(`^([0-9a-fA-F]{4}):([0-9a-fA-F]{2}):([01][0-9a-fA-F])\.([0-7])$`)

// ParsePCIAddress reads DDDD:BB:SS.F, in hex: domain, bus, slot and function.
func ParsePCIAddress(text string) (PCIPlace, error) {
	parts := pciAddress.FindStringSubmatch(text)
	if parts == nil {
		return PCIPlace{}, fmt.Errorf("must be domain, bus, slot and function in hex, such as 0000:03:00.0")
	}
	number := func(hex string) uint8 {
		n, _ := strconv.ParseUint(hex, 16, 8) // two digits at most
		return uint8(n)
	}
	p := PCIPlace{Bus: number(parts[2]), Slot: number(parts[3])}
	inPorts, inSATA := p.Slot >= 2 && p.Slot <= 5, p.Slot >= 0xc && p.Slot <= 0xf
	switch {
	case parts[1] != "0000":
		return p, fmt.Errorf("the machine has the domain 0000 alone")
	case parts[4] != "0":
		return p, fmt.Errorf("the function must be 0: no other device has the slot's function 0")
	case p.Bus > MaxRootPorts:
		return p, fmt.Errorf("the buses are 00, the root bus, and 01 to 20, which are behind root ports")
	case p.Bus > 0 && p.Slot != 0:
		return p, fmt.Errorf("a bus behind a root port has the slot 00 alone")
	case p.Bus == 0 && (p.Slot == 0 || p.Slot == 0x1f):
		return p, fmt.Errorf("slots 00 and 1f of the root bus are the chipset's")
	case p.Bus == 0 && inPorts:
		return p, fmt.Errorf("slots 02 to 05 of the root bus are kept for root ports")
	case p.Bus == 0 && inSATA:
		return p, fmt.Errorf("slots 0c to 0f of the root bus are kept for SATA controllers")
	}
	return p, nil
}

// Transitional reports whether virtio devices are also what guests without virtio 1 know.
func (d *Devices) Transitional() bool {
	return d.UseVirtioTransitional != nil && *d.UseVirtioTransitional
}

// Conventional reports whether the interface's card is a conventional PCI device, which no root port takes.
func (i *Interface) Conventional(transitional bool) bool {
	return i.SRIOV == nil && (i.Model == "e1000" || i.Model == "rtl8139" || i.Model == "virtio" && transitional)
}
