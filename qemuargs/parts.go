package qemuargs

import "fmt"

// Part is one part of a Machine, and the arguments by which QEMU gets it.
type Part struct {
	// Name is the part's path in the Machine's JSON, in which an entry of a list is named, not counted: disks[root].
	// What is no such path, such as process, is of every machine.
	Name string
	Args []Arg
}

// part is a part of a Machine. A device is one.
type part interface {
	// args returns the part's arguments. files are those that QEMU inherits.
	args(files files) []Arg
	// inherits returns the files that QEMU inherits for the part.
	inherits() []Inherited
}

// plain is a part that QEMU inherits no file for.
type plain func() []Arg

func (p plain) args(files) []Arg    { return p() }
func (plain) inherits() []Inherited { return nil }

// socketed is a part that QEMU inherits one socket for, of which there is one in a machine.
type socketed struct {
	kind   InheritedKind
	argsOf func(descriptor string) []Arg
}

func (s socketed) inherits() []Inherited { return []Inherited{{Kind: s.kind}} }
func (s socketed) args(files files) []Arg {
	return s.argsOf(files.descriptor(Inherited{Kind: s.kind}))
}

// named is a part and its name.
type named struct {
	name string
	part
}

// partList is a list of parts in the making.
type partList []named

func (l *partList) add(name string, p part) { *l = append(*l, named{name, p}) }

// addAll adds the entries of a list of the Machine.
func addAll[E any](l *partList, list string, entries []E, name func(E) string, of func(E) part) {
	for _, e := range entries {
		l.add(fmt.Sprintf("%s[%s]", list, name(e)), of(e))
	}
}

// parts returns all parts of the machine, in the order of QEMU's command line: QEMU makes the devices in this order.
// What QEMU inherits has the same order.
func (m *Machine) parts() []named {
	var l partList
	l.add("process", plain(m.process))
	l.add("platform", plain(m.platform))
	l.add("smbios", plain(m.smbios))
	l.add("chassis", plain(m.Chassis.args))
	addAll(&l, "acpiTables", m.ACPITables, func(t ACPITable) string { return t.Name }, func(t ACPITable) part { return plain(t.args) })
	l.add("board", plain(m.boardArgs))
	if m.Firmware != nil {
		l.add("firmware", m.Firmware)
	}
	l.add("kernel", plain(m.Kernel.args))
	l.add("reset", plain(m.reset))
	l.add("monitor", socketed{InheritedQMP, m.monitor})
	if m.Serial != nil {
		l.add("serial", socketed{InheritedSerial, m.serial})
	}
	addAll(&l, "ioThreads", m.IOThreads, func(t IOThread) string { return t.ID }, func(t IOThread) part { return ioThread{IOThread: t} })
	addAll(&l, "rootPorts", m.RootPorts, func(p RootPort) string { return p.ID }, func(p RootPort) part { return p })
	addAll(&l, "cpu.plugged", m.CPU.Plugged, func(c PluggedCPU) string { return c.ID },
		func(c PluggedCPU) part { return cpuPlace{model: m.CPU.Model, PluggedCPU: c} })
	if m.Memory != nil {
		addAll(&l, "memory.devices", m.Memory.Devices, func(d MemoryDevice) string { return d.ID },
			func(d MemoryDevice) part { return memoryPlace{shared: m.sharesMemory(), MemoryDevice: d} })
	}
	addAll(&l, "ahci", m.AHCI, func(c AHCI) string { return c.ID }, func(c AHCI) part { return plain(c.args) })
	if m.SCSI != nil {
		l.add("scsi", scsi{SCSI: m.SCSI})
	}
	l.add("usb", plain(m.USB.args))
	addAll(&l, "nics", m.NICs, func(n NIC) string { return n.Name }, func(n NIC) part { return n })
	addAll(&l, "disks", m.Disks, func(d Disk) string { return d.Name }, func(d Disk) part { return d })
	addAll(&l, "fileSystems", m.FileSystems, func(f FileSystem) string { return f.Name }, func(f FileSystem) part { return f })
	l.add("rng", plain(m.RNG.args))
	l.add("balloon", plain(m.Balloon.args))
	l.add("watchdog", plain(m.Watchdog.args))
	l.add("panicPort", plain(m.PanicPort.args))
	l.add("panicCard", plain(m.PanicCard.args))
	l.add("sound", plain(m.Sound.args))
	addAll(&l, "inputs", m.Inputs, func(i Input) string { return i.Name }, func(i Input) part { return plain(i.args) })
	if m.Agent != nil {
		l.add("agent", socketed{InheritedAgent, m.Agent.args})
	}
	if m.TPM != nil {
		l.add("tpm", socketed{InheritedTPM, m.TPM.args})
	}
	l.add("graphics", plain(m.Graphics.args))
	l.add("bounds", plain(m.bounds))
	return l
}

// Parts returns the machine's parts that QEMU gets arguments for, in the order of the command line.
func (m *Machine) Parts() []Part {
	parts, files := m.parts(), m.descriptors()
	var out []Part
	for _, p := range parts {
		if args := p.args(files); len(args) > 0 {
			out = append(out, Part{Name: p.name, Args: args})
		}
	}
	return out
}

// Args returns the arguments of the machine's Program. The order is fixed. QEMU starts with stopped CPUs (-S), which
// QMP sets running. QEMU must inherit the files of Inherits, in their order.
func (m *Machine) Args() []Arg {
	var args []Arg
	for _, p := range m.Parts() {
		args = append(args, p.Args...)
	}
	return args
}
