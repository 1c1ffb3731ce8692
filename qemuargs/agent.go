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
	Driver   string `json:"driver" from:"transitional" rule:"the controller of the port"`
	ID       string `json:"id" rule:"the controller's name"`
	MaxPorts int    `json:"max_ports" rule:"port 0, which can only be a console, and port 1"`
	pciPlace
}

type serialPortProps struct {
	Driver  string `json:"driver" rule:"the port"`
	ID      string `json:"id" rule:"the port's name in QEMU's events"`
	Bus     string `json:"bus" rule:"the port's controller"`
	Number  int    `json:"nr" rule:"port 0 can only be a console"`
	Chardev string `json:"chardev" rule:"the launcher is at the other end"`
	Name    string `json:"name" rule:"the name by which the guest's agent finds the port"`
}

// args are the port's; file is the descriptor of its other end.
func (a *Agent) args(file int) []Arg {
	const controller = "virtio-serial0"
	of := Part{Field: "agent"}
	return []Arg{
		{Flag: "-chardev", Value: socket(AgentPortID, file), Of: of},
		// Port 0 can only be a console. QEMU's default of 31 ports would have
		// the guest set up 64 queues.
		{Flag: "-device", Value: virtioSerialProps{Driver: virtio("virtio-serial-pci", a.Transitional), ID: controller, MaxPorts: 2, pciPlace: a.PCI.place()}, Of: of},
		{Flag: "-device", Value: serialPortProps{Driver: "virtserialport", ID: AgentPortID, Bus: controller + ".0", Number: 1, Chardev: AgentPortID, Name: AgentPort}, Of: of},
	}
}
