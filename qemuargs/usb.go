package qemuargs

// USB is a USB 3 controller, whose bus is usb.0.
type USB struct {
	// Ports is the number of ports, of USB 2 and of USB 3.
	Ports int        `json:"ports"`
	PCI   PCIAddress `json:"pci"`
}

type usbProps struct {
	Driver    string `json:"driver"`
	ID        string `json:"id"`
	USB2Ports int    `json:"p2,omitempty"`
	USB3Ports int    `json:"p3,omitempty"`
	pciPlace
}

func (c *USB) args() []Arg {
	if c == nil {
		return nil
	}
	return []Arg{{Flag: "-device", Value: usbProps{Driver: "qemu-xhci", ID: "usb", USB2Ports: c.Ports, USB3Ports: c.Ports,
		pciPlace: c.PCI.place()}}}
}
