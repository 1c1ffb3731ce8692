package qemuargs

// AgentPort is the name by which QEMU's guest agent finds its port in the guest.
const AgentPort = "org.qemu.guest_agent.0"

// AgentPortID is the port's QEMU id, which events about it carry.
const AgentPortID = "agent0"

// Agent is the port of QEMU's guest agent, on a virtio-serial controller of its
// own; the launcher is at its other end.
type Agent struct {
	PCI PCIAddress `json:"pci"`
	// Transitional: guests without virtio 1 know the device too.
	Transitional bool `json:"transitional,omitempty"`
}

type virtioSerialProps struct {
	Driver   string `json:"driver"`
	ID       string `json:"id"`
	MaxPorts int    `json:"max_ports"`
	pciPlace
}

type serialPortProps struct {
	Driver  string `json:"driver"`
	ID      string `json:"id"`
	Bus     string `json:"bus"`
	Number  int    `json:"nr"`
	Chardev string `json:"chardev"`
	Name    string `json:"name"`
}

// args returns the port's arguments; file is the descriptor of its other end.
func (a *Agent) args(file string) []Arg {
	const controller = "virtio-serial0"
	return []Arg{
		{Flag: "-chardev", Value: socket(AgentPortID, file)},
		// Port 0 can only be a console. QEMU's default of 31 ports would have
		// the guest set up 64 queues.
		{Flag: "-device", Value: virtioSerialProps{Driver: virtio("virtio-serial-pci", a.Transitional), ID: controller, MaxPorts: 2, pciPlace: a.PCI.place()}},
		{Flag: "-device", Value: serialPortProps{Driver: "virtserialport", ID: AgentPortID, Bus: controller + ".0", Number: 1, Chardev: AgentPortID, Name: AgentPort}},
	}
}
