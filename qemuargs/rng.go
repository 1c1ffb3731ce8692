package qemuargs

// RNG is a virtio random number generator fed from /dev/urandom.
type RNG struct {
	PCI PCIAddress `json:"pci"`
	// Transitional: guests without virtio 1 know the device too.
	Transitional bool `json:"transitional,omitempty"`
}

type rngProps struct {
	QOMType  string `json:"qom-type"`
	ID       string `json:"id"`
	Filename string `json:"filename"`
}

type rngDeviceProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	RNG    string `json:"rng,omitempty"`
	pciPlace
}

func (r *RNG) args() []Arg {
	if r == nil {
		return nil
	}
	return []Arg{
		{Flag: "-object", Value: rngProps{QOMType: "rng-random", ID: "objrng0", Filename: "/dev/urandom"}},
		{Flag: "-device", Value: rngDeviceProps{Driver: virtio("virtio-rng-pci", r.Transitional), ID: "rng0", RNG: "objrng0", pciPlace: r.PCI.place()}},
	}
}
