package qemuargs

import "strconv"

// deviceProps are the properties of the devices that need no others.
type deviceProps struct {
	Driver        string `json:"driver"`
	ID            string `json:"id"`
	RNG           string `json:"rng,omitempty"`
	VGAMem        int    `json:"vgamem_mb,omitempty"`
	FreePageHints bool   `json:"free-page-reporting,omitempty"`
	USB2Ports     int    `json:"p2,omitempty"`
	USB3Ports     int    `json:"p3,omitempty"`
	Queues        int    `json:"num_queues,omitempty"`
	QueueSize     int    `json:"virtqueue_size,omitempty"`
	Bus           string `json:"bus,omitempty"`
	Addr          string `json:"addr,omitempty"`
	Multifunction bool   `json:"multifunction,omitempty"`
	Port          string `json:"port,omitempty"`
}

func pciDevice(driver, id string, pci PCIAddress) deviceProps {
	return deviceProps{Driver: driver, ID: id, Bus: pci.Bus, Addr: pci.addr()}
}

// AHCI is a SATA controller besides the q35 chipset's own (whose buses are
// ide.0 to ide.5).
type AHCI struct {
	ID  string     `json:"id"`
	PCI PCIAddress `json:"pci"`
}

func (c AHCI) device() any {
	ahci := pciDevice("ich9-ahci", c.ID, c.PCI)
	ahci.Multifunction = c.PCI.Function == 0 // others of them are beside it
	return ahci
}

// SCSI is a virtio SCSI controller, whose bus is scsi0.0.
type SCSI struct {
	// Queues for requests, and the entries of each.
	Queues    int        `json:"queues"`
	QueueSize int        `json:"queueSize"`
	PCI       PCIAddress `json:"pci"`
}

// SCSIBus is the bus of the SCSI controller.
const SCSIBus = "scsi0.0"

func (c SCSI) device() any {
	scsi := pciDevice("virtio-scsi-pci-non-transitional", "scsi0", c.PCI)
	scsi.Queues, scsi.QueueSize = c.Queues, c.QueueSize
	return scsi
}

func (c USB) device() any {
	usb := pciDevice("qemu-xhci", "usb", c.PCI)
	usb.USB2Ports, usb.USB3Ports = c.Ports, c.Ports
	return usb
}

// platformDevices are the random number generator, balloon, watchdog and inputs.
func (m *Machine) platformDevices() []Arg {
	var args []Arg
	device := func(d deviceProps) { args = append(args, Arg{"-device", d}) }
	if m.RNG != nil {
		args = append(args, Arg{"-object", rngProps{QOMType: "rng-random", ID: "objrng0", Filename: "/dev/urandom"}})
		rng := pciDevice("virtio-rng-pci-non-transitional", "rng0", m.RNG.PCI)
		rng.RNG = "objrng0"
		device(rng)
	}
	if m.Balloon != nil {
		balloon := pciDevice("virtio-balloon-pci-non-transitional", BalloonID, m.Balloon.PCI)
		balloon.FreePageHints = true
		device(balloon)
	}
	if m.Watchdog != nil {
		device(pciDevice("i6300esb", "watchdog0", m.Watchdog.PCI))
		args = append(args, Arg{"-action", "watchdog=" + m.Watchdog.Action})
	}
	for _, i := range m.Inputs {
		if i.PCI != nil {
			device(pciDevice("virtio-tablet-pci", i.ID(), *i.PCI))
		} else {
			device(deviceProps{Driver: "usb-tablet", ID: i.ID(), Bus: "usb.0", Port: strconv.Itoa(i.Port)})
		}
	}
	return args
}

func (m *Machine) display() []Arg {
	args := []Arg{{"-display", "none"}}
	g := m.Graphics
	if g == nil {
		return args
	}
	card := deviceProps{Driver: string(g.Display), ID: "video0"}
	if g.Display == VGA {
		card.Driver = "VGA"
	}
	if g.PCI != nil {
		card.Bus, card.Addr = g.PCI.Bus, g.PCI.addr()
	}
	if g.Display == VGA {
		card.VGAMem = 16 // MiB
	}
	return append(args, Arg{"-vnc", Options{{"", "unix:" + g.Socket}}}, Arg{"-device", card})
}
