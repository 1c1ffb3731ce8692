package qemuargs

import (
	"slices"
	"strconv"
)

// AHCI is a SATA controller besides the q35 chipset's own (whose buses are
// ide.0 to ide.5).
type AHCI struct {
	ID  string     `json:"id"`
	PCI PCIAddress `json:"pci"`
}

type ahciProps struct {
	Driver string `json:"driver" rule:"a SATA controller besides the chipset's"`
	ID     string `json:"id" from:"id"`
	pciPlace
	Multifunction bool `json:"multifunction,omitempty" from:"pci" rule:"function 0 tells of the slot's other functions"`
}

func (c AHCI) device() any {
	return ahciProps{Driver: "ich9-ahci", ID: c.ID, pciPlace: c.PCI.place(), Multifunction: c.PCI.Function == 0} // others of them are beside it
}

// SCSI is a virtio SCSI controller, whose bus is scsi0.0.
type SCSI struct {
	// Queues for requests, and the entries of each.
	Queues    int `json:"queues"`
	QueueSize int `json:"queueSize"`
	// IOThread serves the controller; QEMU's main loop does where it is empty.
	IOThread string     `json:"ioThread,omitempty"`
	PCI      PCIAddress `json:"pci"`
	// Transitional: guests without virtio 1 know the device too.
	Transitional bool `json:"transitional,omitempty"`
}

// SCSIBus is the bus of the SCSI controller.
const SCSIBus = "scsi0.0"

type scsiProps struct {
	Driver    string `json:"driver" from:"transitional" rule:"the controller of bus scsi"`
	ID        string `json:"id" rule:"the controller's name"`
	Queues    int    `json:"num_queues,omitempty" from:"queues"`
	QueueSize int    `json:"virtqueue_size,omitempty" from:"queueSize"`
	IOThread  string `json:"iothread,omitempty" from:"ioThread"`
	pciPlace
}

func (c SCSI) device() any {
	return scsiProps{Driver: virtio("virtio-scsi-pci", c.Transitional), ID: "scsi0", Queues: c.Queues, QueueSize: c.QueueSize, IOThread: c.IOThread, pciPlace: c.PCI.place()}
}

type usbProps struct {
	Driver    string `json:"driver" rule:"the controller of bus usb"`
	ID        string `json:"id" rule:"the controller's name"`
	USB2Ports int    `json:"p2,omitempty" from:"ports"`
	USB3Ports int    `json:"p3,omitempty" from:"ports"`
	pciPlace
}

func (c USB) device() any {
	return usbProps{Driver: "qemu-xhci", ID: "usb", USB2Ports: c.Ports, USB3Ports: c.Ports, pciPlace: c.PCI.place()}
}

type rngDeviceProps struct {
	Driver string `json:"driver" from:"transitional" rule:"the random number generator"`
	ID     string `json:"id" rule:"the device's name"`
	RNG    string `json:"rng,omitempty" rule:"the source of its random numbers"`
	pciPlace
}

func (r *RNG) args() []Arg {
	if r == nil {
		return nil
	}
	of := Part{Field: "rng"}
	return []Arg{
		{Flag: "-object", Value: rngProps{QOMType: "rng-random", ID: "objrng0", Filename: "/dev/urandom"}, Of: of},
		{Flag: "-device", Value: rngDeviceProps{Driver: virtio("virtio-rng-pci", r.Transitional), ID: "rng0", RNG: "objrng0", pciPlace: r.PCI.place()}, Of: of},
	}
}

type balloonProps struct {
	Driver        string `json:"driver" from:"transitional" rule:"the memory balloon"`
	ID            string `json:"id" rule:"the device's name"`
	FreePageHints bool   `json:"free-page-reporting,omitempty" from:"noReporting" rule:"the guest gives back freed pages"`
	pciPlace
}

func (b *Balloon) args() []Arg {
	if b == nil {
		return nil
	}
	return []Arg{{Flag: "-device", Value: balloonProps{Driver: virtio("virtio-balloon-pci", b.Transitional), ID: BalloonID, FreePageHints: !b.NoReporting, pciPlace: b.PCI.place()}, Of: Part{Field: "balloon"}}}
}

type watchdogProps struct {
	Driver string `json:"driver" rule:"the watchdog"`
	ID     string `json:"id" rule:"the device's name"`
	pciPlace
}

func (w *Watchdog) args() []Arg {
	if w == nil {
		return nil
	}
	of := Part{Field: "watchdog"}
	return []Arg{
		{Flag: "-device", Value: watchdogProps{Driver: "i6300esb", ID: "watchdog0", pciPlace: w.PCI.place()}, Of: of},
		{Flag: "-action", Value: Options{{Key: "watchdog", Value: w.Action, From: "action"}}, Of: of},
	}
}

type usbTabletProps struct {
	Driver string `json:"driver" from:"pci,keyboard" rule:"a tablet that is no PCI device is a USB device"`
	ID     string `json:"id" from:"name"`
	Bus    string `json:"bus" from:"pci" rule:"the USB controller's"`
	Port   string `json:"port" from:"port,pci"`
}

type virtioTabletProps struct {
	Driver string `json:"driver" from:"pci"`
	ID     string `json:"id" from:"name"`
	pciPlace
}

func (i Input) device() any {
	if i.PCI != nil {
		return virtioTabletProps{Driver: "virtio-tablet-pci", ID: i.ID(), pciPlace: i.PCI.place()}
	}
	driver := "usb-tablet"
	if i.Keyboard {
		driver = "usb-kbd"
	}
	return usbTabletProps{Driver: driver, ID: i.ID(), Bus: "usb.0", Port: strconv.Itoa(i.Port)}
}

// platformDevices are the random number generator, balloon, watchdog, panic devices, sound card and inputs.
func (m *Machine) platformDevices() []Arg {
	args := slices.Concat(m.RNG.args(), m.Balloon.args(), m.Watchdog.args(), m.PanicPort.args(), m.PanicCard.args(), m.Sound.args())
	for _, i := range m.Inputs {
		args = append(args, Arg{Flag: "-device", Value: i.device(), Of: Part{Field: "inputs", Name: i.Name}})
	}
	return args
}

type cardProps struct {
	Driver string `json:"driver" from:"display"`
	ID     string `json:"id" rule:"the card's name"`
	VGAMem int    `json:"vgamem_mb,omitempty" from:"display" rule:"MiB, QEMU's own number"`
	pciPlace
}

func (m *Machine) display() []Arg {
	args := []Arg{{Flag: "-display", Value: "none", Rule: "no window on the node"}}
	g := m.Graphics
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
	of := Part{Field: "graphics"}
	return append(args, Arg{Flag: "-vnc", Value: Options{{Value: "unix:" + g.Socket, From: "socket"}}, Of: of}, Arg{Flag: "-device", Value: card, Of: of})
}
