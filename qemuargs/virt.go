package qemuargs

// This file has what only machines of arm64, QEMU's virt, have. They have neither the chipset nor the legacy devices of
// a PC: the firmware is always UEFI, and all devices but serial port, clock and TPM are PCI devices.

// virtRAMID is ramID of the board virt.
const virtRAMID = "mach-virt.ram"

// GIC is the guest's interrupt controller (QEMU -machine gic-version=).
type GIC string

// Interrupt controllers: version 3, which QEMU emulates for up to 512 CPUs, and that of the node, as KVM has it.
const (
	GICv3   GIC = "3"
	HostGIC GIC = "host"
)

// isVirt reports whether the machine is one of arm64.
func (m *Machine) isVirt() bool { return m.Arch == ARM64 }

// virtBoard returns the value of -machine.
func (m *Machine) virtBoard() Options {
	o := Options{
		{Value: m.Type},
		{Key: "usb", Value: "off"},
		{Key: "dump-guest-core", Value: "off"},
		{Key: "acpi", Value: "on"},
	}
	if len(m.NUMA) == 0 { // with NUMA nodes, each names its own
		o = append(o, Option{Key: "memory-backend", Value: virtRAMID})
	}
	return append(append(o, Option{Key: "gic-version", Value: string(m.GIC)}), m.Firmware.board()...)
}

// virtBoardArgs returns the arguments of its clock.
func (m *Machine) virtBoardArgs() []Arg {
	return []Arg{{Flag: "-rtc", Value: m.Clock.rtc()}}
}
