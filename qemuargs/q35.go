package qemuargs

// This file has what only machines of amd64, QEMU's q35, have: properties, chipset and serial
// port.

// ramID is the memory backend of the guest's RAM. Migration knows the board's RAM by this name.
const ramID = "pc.ram"

// ramID returns that of the machine's board.
func (m *Machine) ramID() string {
	if m.isVirt() {
		return virtRAMID
	}
	return ramID
}

// cpuTypeSuffix makes a CPU model the name of its device.
const cpuTypeSuffix = "-x86_64-cpu"

// board returns the value of -machine.
func (m *Machine) board() Options {
	if m.isVirt() {
		return m.virtBoard()
	}
	acpi := "on"
	if m.NoACPI {
		acpi = "off"
	}
	o := Options{
		{Value: m.Type},
		{Key: "usb", Value: "off"},
		{Key: "vmport", Value: "off"},
		{Key: "dump-guest-core", Value: "off"},
		{Key: "acpi", Value: acpi},
	}
	if len(m.NUMA) == 0 { // with NUMA nodes, each names its own
		o = append(o, Option{Key: "memory-backend", Value: ramID})
	}
	for _, absent := range []struct {
		name string
		is   bool
	}{{"sata", !m.SATA}, {"i8042", !m.PS2}, {"hpet", m.Clock.NoHPET}, {"pit", m.Clock.NoPIT}, {"graphics", m.SerialBIOS}} {
		if absent.is {
			o = append(o, Option{Key: absent.name, Value: "off"})
		}
	}
	if m.SMM != "" {
		o = append(o, Option{Key: "smm", Value: string(m.SMM)})
	}
	return append(o, m.Firmware.board()...)
}

// boardArgs returns the arguments of its clocks and chipset.
func (m *Machine) boardArgs() []Arg {
	if m.isVirt() {
		return m.virtBoardArgs()
	}
	args := []Arg{
		{Flag: "-rtc", Value: m.Clock.rtc()},
		{Flag: "-global", Value: "ICH9-LPC.disable_s3=1"},
		{Flag: "-global", Value: "ICH9-LPC.disable_s4=1"},
	}
	if m.NoACPI {
		// The chipset hides from PCIe's own hotplug what is in the root ports' slots, for ACPI shows it (QEMU,
		// docs/specs/acpi_pci_hotplug).
		args = append(args, Arg{Flag: "-global", Value: Options{{Key: "ICH9-LPC.acpi-pci-hotplug-with-bridge-support", Value: "off"}}})
	}
	if m.NoPCIHole64 {
		args = append(args, Arg{Flag: "-global", Value: Options{{Key: "q35-pcihost.pci-hole64-size", Value: "0K"}}})
	}
	// Without KVM there is no such device, and QEMU would warn.
	if m.Clock.PITPolicy != "" && m.Accelerator == KVM {
		args = append(args, Arg{Flag: "-global", Value: Options{{Key: "kvm-pit.lost_tick_policy", Value: m.Clock.PITPolicy}}})
	}
	return args
}

func (c Clock) rtc() Options {
	o := Options{c.base()}
	if c.RTCSource != "" {
		o = append(o, Option{Key: "clock", Value: c.RTCSource})
	}
	if c.RTCCatchUp {
		o = append(o, Option{Key: "driftfix", Value: "slew"})
	}
	return o
}
