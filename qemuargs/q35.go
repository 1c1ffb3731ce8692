package qemuargs

import "fmt"

// This file has what only machines of amd64, QEMU's q35, have: properties, chipset and serial
// port.

// ramID is the memory backend of the guest's RAM. Migration knows the board's RAM by this name.
const ramID = "pc.ram"

// cpuTypeSuffix makes a CPU model the name of its device.
const cpuTypeSuffix = "-x86_64-cpu"

// board is the value of -machine.
func (m *Machine) board() Options {
	acpi := "on"
	if m.NoACPI {
		acpi = "off"
	}
	o := Options{{"", m.Type}, {"usb", "off"}, {"vmport", "off"}, {"dump-guest-core", "off"}, {"acpi", acpi}, {"memory-backend", ramID}}
	for _, off := range []struct {
		name string
		is   bool
	}{{"sata", !m.SATA}, {"i8042", !m.PS2}, {"hpet", m.Clock.NoHPET}, {"pit", m.Clock.NoPIT}, {"graphics", m.SerialBIOS}} {
		if off.is {
			o = append(o, Option{off.name, "off"})
		}
	}
	return o
}

// boardArgs are the arguments of its clocks and chipset.
func (m *Machine) boardArgs() []Arg {
	args := []Arg{
		{"-rtc", m.Clock.rtc()},
		{"-global", "ICH9-LPC.disable_s3=1"},
		{"-global", "ICH9-LPC.disable_s4=1"},
	}
	// Without KVM there is no such device, and QEMU would warn.
	if m.Clock.PITPolicy != "" && m.Accelerator == KVM {
		args = append(args, Arg{"-global", "kvm-pit.lost_tick_policy=" + m.Clock.PITPolicy})
	}
	return args
}

func (c Clock) rtc() Options {
	o := Options{{"base", "utc"}}
	if c.RTCSource != "" {
		o = append(o, Option{"clock", c.RTCSource})
	}
	if c.RTCCatchUp {
		o = append(o, Option{"driftfix", "slew"})
	}
	return o
}

type serialProps struct {
	Driver  string `json:"driver"`
	ID      string `json:"id"`
	Chardev string `json:"chardev"`
	Index   int    `json:"index"`
}

// args are the serial port's; file is the descriptor of its other end.
func (*Serial) args(file int) []Arg {
	return []Arg{
		{"-chardev", fmt.Sprintf("socket,id=serial0,fd=%d", file)},
		{"-device", serialProps{Driver: "isa-serial", ID: "serial0", Chardev: "serial0", Index: 0}},
	}
}
