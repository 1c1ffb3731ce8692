package qemuargs

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
	Driver    string `json:"driver"`
	ID        string `json:"id"`
	Queues    int    `json:"num_queues,omitempty"`
	QueueSize int    `json:"virtqueue_size,omitempty"`
	IOThread  string `json:"iothread,omitempty"`
	pciPlace
}

// scsi is the SCSI controller as a part.
type scsi struct {
	fixed
	*SCSI
}

func (scsi) inherits() []Inherited { return nil }
func (c scsi) plugs() bool         { return c.PCI.plugs() }
func (c scsi) entry() any          { return c.SCSI }

func (c scsi) args(files) []Arg {
	return []Arg{{Flag: "-device", Value: scsiProps{Driver: virtio("virtio-scsi-pci", c.Transitional), ID: "scsi0",
		Queues: c.Queues, QueueSize: c.QueueSize, IOThread: c.IOThread, pciPlace: c.PCI.place()}}}
}
