package qemuargs

// AHCI is a SATA controller besides the q35 chipset's own (whose buses are
// ide.0 to ide.5).
type AHCI struct {
	ID  string     `json:"id"`
	PCI PCIAddress `json:"pci"`
}

type ahciProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	pciPlace
	Multifunction bool `json:"multifunction,omitempty"`
}

func (c AHCI) args() []Arg {
	// Function 0 tells of the slot's other functions, which are more controllers.
	props := ahciProps{Driver: "ich9-ahci", ID: c.ID, pciPlace: c.PCI.place(), Multifunction: c.PCI.Function == 0}
	return []Arg{{Flag: "-device", Value: props}}
}
