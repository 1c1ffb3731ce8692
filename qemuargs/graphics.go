package qemuargs

// Display is the QEMU device of a graphics card.
type Display string

// Displays.
const (
	VGA       Display = ""
	VirtioVGA Display = "virtio-vga"
	VirtioGPU Display = "virtio-gpu-pci" // without a VGA's registers
	Bochs     Display = "bochs-display"
	RAMFB     Display = "ramfb"
)

// Graphics is a graphics card shown over VNC on a unix socket.
type Graphics struct {
	// Display is empty for VGA.
	Display Display `json:"display,omitempty"`
	// PCI is unset for ramfb, which is no PCI device.
	PCI    *PCIAddress `json:"pci,omitempty"`
	Socket string      `json:"socket"`
}

type cardProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	VGAMem int    `json:"vgamem_mb,omitempty"`
	pciPlace
}

// args returns no graphics card for a nil Graphics. QEMU itself never opens a window on the node.
func (g *Graphics) args() []Arg {
	args := []Arg{{Flag: "-display", Value: "none"}}
	if g == nil {
		return args
	}
	card := cardProps{Driver: string(g.Display), ID: "video0"}
	if g.PCI != nil {
		card.pciPlace = g.PCI.place()
	}
	if g.Display == VGA {
		card.Driver, card.VGAMem = "VGA", 16 // MiB
	}
	return append(args, Arg{Flag: "-vnc", Value: Options{{Value: "unix:" + g.Socket}}}, Arg{Flag: "-device", Value: card})
}
