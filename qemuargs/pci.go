package qemuargs

import (
	"fmt"
	"reflect"
)

// PCIAddress is where a device sits: a bus by its QEMU id, and slot and
// function on it.
type PCIAddress struct {
	Bus      string `json:"bus"`
	Slot     uint8  `json:"slot"`
	Function uint8  `json:"function,omitempty"`
}

// RootBus is the bus of the machine's own devices.
const RootBus = "pcie.0"

// plugs reports whether QEMU plugs a device there: "Bus 'pcie.0' does not support hotplugging".
func (a PCIAddress) plugs() bool { return a.Bus != RootBus }

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

func (RootPort) inherits() []Inherited { return nil }
func (RootPort) plugs() bool           { return false }
func (RootPort) parting() []Step       { return nil }
func (p RootPort) entry() any          { return p }

// become takes note of whether the port is spare: QEMU need not know.
func (p RootPort) become(next live, _ liveFiles) []Change {
	to := next.(RootPort)
	if p.Spare = to.Spare; p != to {
		return nil
	}
	return []Change{{Entry: to}}
}

func (p RootPort) args(files) []Arg {
	return []Arg{{Flag: "-device", Value: rootPortProps{
		Driver: "pcie-root-port", ID: p.ID, pciPlace: p.PCI.place(), Chassis: p.Chassis,
		// Port numbers are unique per device/function; libvirt uses the same encoding.
		Port: p.PCI.Slot<<3 | p.PCI.Function,
		// Function 0 must announce that the other functions of its slot exist.
		Multifunction: p.PCI.Function == 0,
	}}}
}

// Place is where a device of a Machine sits.
type Place struct {
	// Part is the device's path in the Machine's JSON, as in Part.
	Part string
	// Single: the device is no entry of a list.
	Single bool
	// Address is the Machine's own.
	Address *PCIAddress
}

// Places returns those of the machine's devices, whatever devices there are.
func (m *Machine) Places() (out []Place) {
	add := func(part string, single bool, device reflect.Value) {
		for device.Kind() == reflect.Pointer {
			if device.IsNil() {
				return
			}
			device = device.Elem()
		}
		if device.Kind() != reflect.Struct {
			return
		}
		switch pci := device.FieldByName("PCI"); {
		case !pci.IsValid():
		case pci.Kind() == reflect.Pointer && !pci.IsNil():
			out = append(out, Place{part, single, pci.Interface().(*PCIAddress)})
		case pci.Kind() == reflect.Struct:
			out = append(out, Place{part, single, pci.Addr().Interface().(*PCIAddress)})
		}
	}
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		name, f := jsonName(v.Type().Field(i)), v.Field(i)
		if f.Kind() != reflect.Slice {
			add(name, true, f)
			continue
		}
		for j := range f.Len() {
			add(fmt.Sprintf("%s[%s]", name, nameOf(f.Index(j))), false, f.Index(j))
		}
	}
	if m.Memory != nil {
		for i := range m.Memory.Devices {
			d := &m.Memory.Devices[i]
			out = append(out, Place{"memory.devices[" + d.ID + "]", false, &d.PCI})
		}
	}
	return out
}
