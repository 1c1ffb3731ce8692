package qemuargs

// Balloon is a virtio memory balloon, by which the guest reports free pages.
type Balloon struct {
	PCI PCIAddress `json:"pci"`
	// NoReporting: the guest reports no free pages.
	NoReporting bool `json:"noReporting,omitempty"`
	// Transitional: guests without virtio 1 know the device too.
	Transitional bool `json:"transitional,omitempty"`
}

// BalloonID is the QEMU device id of the balloon.
const BalloonID = "balloon0"

type balloonProps struct {
	Driver        string `json:"driver"`
	ID            string `json:"id"`
	FreePageHints bool   `json:"free-page-reporting,omitempty"`
	pciPlace
}

func (b *Balloon) args() []Arg {
	if b == nil {
		return nil
	}
	return []Arg{{Flag: "-device", Value: balloonProps{Driver: virtio("virtio-balloon-pci", b.Transitional), ID: BalloonID, FreePageHints: !b.NoReporting, pciPlace: b.PCI.place()}}}
}
