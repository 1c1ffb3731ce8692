package qemuargs

// This file has what only machines of amd64, QEMU's q35, have: properties, chipset and serial
// port.

// ramID is the memory backend of the guest's RAM. Migration knows the board's RAM by this name.
const ramID = "pc.ram"

// ramID is that of the machine's board.
func (m *Machine) ramID() string {
	if m.isVirt() {
		return virtRAMID
	}
	return ramID
}

// cpuTypeSuffix makes a CPU model the name of its device.
const cpuTypeSuffix = "-x86_64-cpu"

// board is the value of -machine.
func (m *Machine) board() Options {
	if m.isVirt() {
		return m.virtBoard()
	}
	acpi := "on"
	if m.NoACPI {
		acpi = "off"
	}
	o := Options{
		{Value: m.Type, From: "type"},
		{Key: "usb", Value: "off", Rule: "no USB controller of the chipset: where there is one, it is a device"},
		{Key: "vmport", Value: "off", Rule: "no I/O port of VMware's"},
		{Key: "dump-guest-core", Value: "off", Rule: "the guest's memory is not in QEMU's core files"},
		{Key: "acpi", Value: acpi, From: "noACPI"},
	}
	if len(m.NUMA) == 0 { // with NUMA nodes, each names its own
		o = append(o, Option{Key: "memory-backend", Value: ramID, From: "numa", Rule: "the guest's memory is the object of this name"})
	}
	for _, off := range []struct {
		name, from string
		is         bool
	}{{"sata", "sata", !m.SATA}, {"i8042", "ps2", !m.PS2}, {"hpet", "clock.noHPET", m.Clock.NoHPET}, {"pit", "clock.noPIT", m.Clock.NoPIT}, {"graphics", "serialBIOS", m.SerialBIOS}} {
		if off.is {
			o = append(o, Option{Key: off.name, Value: "off", From: off.from})
		}
	}
	if m.SMM != "" {
		o = append(o, Option{Key: "smm", Value: string(m.SMM), From: "smm"})
	}
	return append(o, m.Firmware.board()...)
}

// boardArgs are the arguments of its clocks and chipset.
func (m *Machine) boardArgs() []Arg {
	if m.isVirt() {
		return m.virtBoardArgs()
	}
	args := []Arg{
		{Flag: "-rtc", Value: m.Clock.rtc(), Rule: "the guest's clock"},
		{Flag: "-global", Value: "ICH9-LPC.disable_s3=1", Rule: "no suspend to memory: nobody would wake the guest"},
		{Flag: "-global", Value: "ICH9-LPC.disable_s4=1", Rule: "no suspend to disk: nobody would wake the guest"},
	}
	if m.NoACPI {
		// The chipset hides from PCIe's own hotplug what is in the root ports' slots, for ACPI shows it (QEMU, docs/specs/acpi_pci_hotplug).
		args = append(args, Arg{Flag: "-global", Value: Options{{Key: "ICH9-LPC.acpi-pci-hotplug-with-bridge-support", Value: "off",
			Rule: "PCIe's own hotplug shows the guest what is in the slots, which ACPI would"}}, From: "noACPI"})
	}
	if m.NoPCIHole64 {
		args = append(args, Arg{Flag: "-global", Value: Options{{Key: "q35-pcihost.pci-hole64-size", Value: "0K", Rule: "no window for PCI devices above 4 GiB"}}, From: "noPCIHole64"})
	}
	// Without KVM there is no such device, and QEMU would warn.
	if m.Clock.PITPolicy != "" && m.Accelerator == KVM {
		args = append(args, Arg{Flag: "-global", Value: Options{{Key: "kvm-pit.lost_tick_policy", Value: m.Clock.PITPolicy, From: "clock.pitPolicy"}}, From: "clock.pitPolicy,accelerator"})
	}
	return args
}

func (c Clock) rtc() Options {
	o := Options{c.base()}
	if c.RTCSource != "" {
		o = append(o, Option{Key: "clock", Value: c.RTCSource, From: "clock.rtcSource"})
	}
	if c.RTCCatchUp {
		o = append(o, Option{Key: "driftfix", Value: "slew", From: "clock.rtcCatchUp"})
	}
	return o
}

type serialProps struct {
	Driver  string `json:"driver" rule:"a serial port of the PC"`
	ID      string `json:"id" rule:"the port's name"`
	Chardev string `json:"chardev" rule:"the launcher is at the other end"`
	Index   int    `json:"index" rule:"the first: COM1, ttyS0"`
}

// args are the serial port's; file is the descriptor of its other end.
func (*Serial) args(file int) []Arg {
	of := Part{Field: "serial"}
	return []Arg{
		{Flag: "-chardev", Value: socket("serial0", file), Of: of},
		{Flag: "-device", Value: serialProps{Driver: "isa-serial", ID: "serial0", Chardev: "serial0", Index: 0}, Of: of},
	}
}
