package qemuargs

// Watchdog is an Intel 6300ESB watchdog.
type Watchdog struct {
	// Action is reset, poweroff or shutdown.
	Action string     `json:"action"`
	PCI    PCIAddress `json:"pci"`
}

type watchdogProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	pciPlace
}

func (w *Watchdog) args() []Arg {
	if w == nil {
		return nil
	}
	return []Arg{
		{Flag: "-device", Value: watchdogProps{Driver: "i6300esb", ID: "watchdog0", pciPlace: w.PCI.place()}},
		{Flag: "-action", Value: Options{{Key: "watchdog", Value: w.Action}}},
	}
}
