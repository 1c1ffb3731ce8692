package qemuargs

import "strconv"

// Input is a tablet: a pointing device with absolute coordinates. Or it is a keyboard.
type Input struct {
	Name string `json:"name"`
	// Keyboard, on the USB controller: machines of arm64 have no other.
	Keyboard bool `json:"keyboard,omitempty"`
	// Port of the USB controller, from 1; 0 for a virtio tablet, which has PCI.
	Port int         `json:"port,omitempty"`
	PCI  *PCIAddress `json:"pci,omitempty"`
}

// ID returns the QEMU device id of the input.
func (i Input) ID() string { return "input-" + i.Name }

type usbTabletProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	Bus    string `json:"bus"`
	Port   string `json:"port"`
}

type virtioTabletProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	pciPlace
}

func (i Input) args() []Arg {
	if i.PCI != nil {
		tablet := virtioTabletProps{Driver: "virtio-tablet-pci", ID: i.ID(), pciPlace: i.PCI.place()}
		return []Arg{{Flag: "-device", Value: tablet}}
	}
	driver := "usb-tablet"
	if i.Keyboard {
		driver = "usb-kbd"
	}
	props := usbTabletProps{Driver: driver, ID: i.ID(), Bus: USBBus, Port: strconv.Itoa(i.Port)}
	return []Arg{{Flag: "-device", Value: props}}
}
