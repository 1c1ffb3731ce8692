package qemuargs

import "fmt"

// AgentPort is the name by which QEMU's guest agent finds its port in the guest.
const AgentPort = "org.qemu.guest_agent.0"

// AgentPortID is the port's QEMU id, which events about it carry.
const AgentPortID = "agent0"

// Agent is the port of QEMU's guest agent, on a virtio-serial controller of its
// own; the launcher is at its other end.
type Agent struct {
	PCI PCIAddress `json:"pci"`
}

type virtioSerialProps struct {
	Driver   string `json:"driver"`
	ID       string `json:"id"`
	MaxPorts int    `json:"max_ports"`
	Bus      string `json:"bus"`
	Addr     string `json:"addr"`
}

type serialPortProps struct {
	Driver  string `json:"driver"`
	ID      string `json:"id"`
	Bus     string `json:"bus"`
	Number  int    `json:"nr"`
	Chardev string `json:"chardev"`
	Name    string `json:"name"`
}

// args are the port's; file is the descriptor of its other end.
func (a *Agent) args(file int) []Arg {
	const controller = "virtio-serial0"
	return []Arg{
		{"-chardev", fmt.Sprintf("socket,id=%s,fd=%d", AgentPortID, file)},
		// Port 0 can only be a console. QEMU's default of 31 ports would have
		// the guest set up 64 queues.
		{"-device", virtioSerialProps{Driver: "virtio-serial-pci-non-transitional", ID: controller, MaxPorts: 2, Bus: a.PCI.Bus, Addr: a.PCI.addr()}},
		{"-device", serialPortProps{Driver: "virtserialport", ID: AgentPortID, Bus: controller + ".0", Number: 1, Chardev: AgentPortID, Name: AgentPort}},
	}
}
