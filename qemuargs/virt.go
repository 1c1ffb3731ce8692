package qemuargs

// This file has what only machines of arm64, QEMU's virt, have. They have neither the chipset nor the legacy devices of a PC:
// the firmware is always UEFI, and all devices but serial port, clock and TPM are PCI devices.

// virtRAMID is ramID of the board virt.
const virtRAMID = "mach-virt.ram"

// GIC is the guest's interrupt controller (QEMU -machine gic-version=).
type GIC string

// Interrupt controllers: version 3, which QEMU emulates for up to 512 CPUs, and that of the node, as KVM has it.
const (
	GICv3   GIC = "3"
	HostGIC GIC = "host"
)

// isVirt says whether the machine is one of arm64.
func (m *Machine) isVirt() bool { return m.Arch == ARM64 }

// virtBoard is the value of -machine.
func (m *Machine) virtBoard() Options {
	o := Options{
		{Value: m.Type, From: "type"},
		{Key: "usb", Value: "off", Rule: "no USB controller of the board: where there is one, it is a device"},
		{Key: "dump-guest-core", Value: "off", Rule: "the guest's memory is not in QEMU's core files"},
		{Key: "acpi", Value: "on", From: "noACPI", Rule: "as UEFI needs it"},
	}
	if len(m.NUMA) == 0 { // with NUMA nodes, each names its own
		o = append(o, Option{Key: "memory-backend", Value: virtRAMID, From: "numa", Rule: "the guest's memory is the object of this name"})
	}
	return append(append(o, Option{Key: "gic-version", Value: string(m.GIC), From: "gic"}), m.Firmware.board()...)
}

// virtBoardArgs are the arguments of its clock.
func (m *Machine) virtBoardArgs() []Arg {
	return []Arg{{Flag: "-rtc", Value: m.Clock.rtc(), Rule: "the guest's clock"}}
}

// virtArgs are the serial port's: the board has one, a PL011, for which there is no -device.
func (*Serial) virtArgs(file int) []Arg {
	of := Part{Field: "serial"}
	return []Arg{
		{Flag: "-chardev", Value: socket("serial0", file), Of: of},
		{Flag: "-serial", Value: "chardev:serial0", Of: of},
	}
}
