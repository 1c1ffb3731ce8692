package qemuargs

import "fmt"

// PCIAddress is where a device sits: a bus by its QEMU id, and slot and
// function on it.
type PCIAddress struct {
	Bus      string `json:"bus"`
	Slot     uint8  `json:"slot"`
	Function uint8  `json:"function,omitempty"`
}

// addr returns the address in the form of QEMU's "addr" property.
func (a PCIAddress) addr() string {
	if a.Function == 0 {
		return fmt.Sprintf("0x%x", a.Slot)
	}
	return fmt.Sprintf("0x%x.0x%x", a.Slot, a.Function)
}

// pciPlace is where a device sits, as its properties say it.
type pciPlace struct {
	Bus  string `json:"bus,omitempty"`
	Addr string `json:"addr,omitempty"`
}

func (a PCIAddress) place() pciPlace { return pciPlace{Bus: a.Bus, Addr: a.addr()} }

// RootPort is a pcie-root-port: a slot for one device. A spare port is left free, so that a
// device can be hot-plugged later.
type RootPort struct {
	ID      string `json:"id"`
	Chassis uint8  `json:"chassis"`
	// Spare: no device is in it when the guest begins.
	Spare bool       `json:"spare,omitempty"`
	PCI   PCIAddress `json:"pci"`
}

type rootPortProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	pciPlace
	Chassis       uint8 `json:"chassis"`
	Port          uint8 `json:"port"`
	Multifunction bool  `json:"multifunction,omitempty"`
}

func (p RootPort) args() []Arg {
	return []Arg{{Flag: "-device", Value: rootPortProps{
		Driver: "pcie-root-port", ID: p.ID, pciPlace: p.PCI.place(), Chassis: p.Chassis,
		// Port numbers are unique per device/function; libvirt uses the same encoding.
		Port: p.PCI.Slot<<3 | p.PCI.Function,
		// Function 0 must announce that the other functions of its slot exist.
		Multifunction: p.PCI.Function == 0,
	}}}
}
