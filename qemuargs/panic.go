package qemuargs

// PanicPort is a port of the ISA bus by which the guest's kernel says that it has panicked. QEMU then ends, with the
// event GUEST_PANICKED before.
type PanicPort struct{}

// PanicCard is a PCI device that does the same as a PanicPort.
type PanicCard struct {
	PCI PCIAddress `json:"pci"`
}

// panicPort is the port that the Linux driver and libvirt know: QEMU's own, and that of the ACPI table.
const panicPort = 0x505

type panicPortProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	Port   int    `json:"ioport"`
}

func (p *PanicPort) args() []Arg {
	if p == nil {
		return nil
	}
	return []Arg{{Flag: "-device", Value: panicPortProps{Driver: "pvpanic", ID: "panic0", Port: panicPort}}}
}

type panicCardProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	pciPlace
}

func (p *PanicCard) args() []Arg {
	if p == nil {
		return nil
	}
	return []Arg{{Flag: "-device", Value: panicCardProps{Driver: "pvpanic-pci", ID: "panic1", pciPlace: p.PCI.place()}}}
}
