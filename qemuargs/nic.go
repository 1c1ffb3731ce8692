package qemuargs

import (
	"reflect"
	"strings"
)

// NIC is a network card and what is behind it: a tap, the program passt, a network inside QEMU, or a card of the node.
type NIC struct {
	Name string `json:"name"`
	// Driver is a QEMU network device such as virtio-net-pci-non-transitional.
	Driver string `json:"driver"`
	MAC    string `json:"mac"`
	// MTU is told to the guest by virtio; 0 leaves it out.
	MTU int `json:"mtu,omitempty"`
	// Queues is the number of the tap's queues, at least 1. A UserNetwork has one queue,
	// whatever Queues says; the card is the same.
	Queues int `json:"queues"`
	// QueueSize is the number of entries of a virtio card's queues, each way.
	QueueSize int `json:"queueSize,omitempty"`
	// NoUSO and NoTunnels turn off offloads of a virtio card. Machine types since 8.2 and 10.2
	// have these offloads if the host's kernel has them (6.2, and 6.17): a guest that began
	// with an offload could not go to a host without it.
	NoUSO     bool `json:"noUSO,omitempty"`
	NoTunnels bool `json:"noTunnels,omitempty"`
	// Vhost: the node's kernel moves the packets between the tap's queues and the guest's
	// memory (vhost-net), and QEMU sees none of them. The guest sees the same card,
	// but for features that an old kernel lacks. It means nothing for a UserNetwork.
	Vhost bool `json:"vhost,omitempty"`
	// Down: the card's link is down. QEMU has no argument for it: virt-launcher says it by set_link
	// before the guest runs, and whenever it changes.
	Down bool `json:"down,omitempty"`
	// RefreshLink: after a migration virt-launcher takes the card's link down for a moment, so that the guest asks the
	// network for an address.
	RefreshLink bool `json:"refreshLink,omitempty"`
	// NoROM leaves out the card's own firmware also where the card is booted from: the machine's firmware drives the card.
	NoROM bool `json:"noROM,omitempty"`
	// BootIndex 0 means that the card is not booted from.
	BootIndex uint32 `json:"bootIndex,omitempty"`
	// ACPIIndex is the card's number that ACPI tells the guest; 0 is none.
	ACPIIndex int        `json:"acpiIndex,omitempty"`
	PCI       PCIAddress `json:"pci"`
	// User is the network inside QEMU; nil with a tap.
	User *UserNetwork `json:"user,omitempty"`
	// HostDevice is the PCI address, on the node, of the card that the guest gets by VFIO, such as 0000:3b:02.1. The
	// card has no tap and no queues of QEMU's, and MAC is what the network gave the card.
	HostDevice string `json:"hostDevice,omitempty"`
	// Passt is where passt listens, which moves the packets instead of a tap. The launcher connects, and QEMU gets
	// the connection. It has one queue. Empty without passt.
	Passt string `json:"passt,omitempty"`
}

// ID returns the QEMU device id of the card.
func (n NIC) ID() string { return "nic-" + n.Name }

func (n NIC) netdevID() string { return "net-" + n.Name }

type tapProps struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	FD   string `json:"fd,omitempty"`
	FDs  string `json:"fds,omitempty"`
	// QEMU takes vhostfd with fd, and vhostfds, as many, with fds.
	Vhost    bool   `json:"vhost,omitempty"`
	VhostFD  string `json:"vhostfd,omitempty"`
	VhostFDs string `json:"vhostfds,omitempty"`
}

// streamProps are of a socket over which QEMU sends and gets frames, each after its length.
type streamProps struct {
	Type   string      `json:"type"`
	ID     string      `json:"id"`
	Server bool        `json:"server"`
	Addr   inheritedFD `json:"addr"`
}

// inheritedFD is a socket among QEMU's SocketAddress.
type inheritedFD struct {
	Type string `json:"type"`
	FD   string `json:"str"`
}

// inherits returns the queues of the card's tap with their files of vhost-net, or the connection to passt with the one
// that tells passt's container of QEMU's end.
func (n NIC) inherits() []Inherited {
	if n.Passt != "" {
		return []Inherited{{Kind: InheritedPasst, Name: n.Name}, {Kind: InheritedPasstLifeline, Name: n.Name}}
	}
	var files []Inherited
	for queue := range n.tapQueues() {
		files = append(files, Inherited{InheritedTap, n.Name, queue})
	}
	for queue := range n.vhostQueues() {
		files = append(files, Inherited{InheritedVhost, n.Name, queue})
	}
	return files
}

func (n NIC) args(files files) []Arg {
	device := Arg{Flag: "-device", Value: n.Device()}
	if n.HostDevice != "" {
		return []Arg{device}
	}
	behind := TapFiles{}
	for _, file := range n.inherits() {
		switch file.Kind {
		case InheritedTap, InheritedPasst:
			behind.Queues = append(behind.Queues, files.descriptor(file))
		case InheritedVhost:
			behind.Vhost = append(behind.Vhost, files.descriptor(file))
		}
	}
	return []Arg{{Flag: "-netdev", Value: n.Netdev(behind)}, device}
}

// TapFiles are the descriptors behind a card, as QEMU's properties name them: one for each queue of the tap, or the
// connection to passt. Vhost is empty without vhost-net.
type TapFiles struct{ Queues, Vhost []string }

// Netdev returns the -netdev of the card. A UserNetwork needs no files.
func (n NIC) Netdev(files TapFiles) any {
	if n.User != nil {
		return n.User.netdev(n.netdevID())
	}
	if n.Passt != "" {
		return streamProps{Type: "stream", ID: n.netdevID(), Addr: inheritedFD{Type: "fd", FD: files.Queues[0]}}
	}
	p := tapProps{Type: "tap", ID: n.netdevID(), Vhost: n.Vhost}
	p.FD, p.FDs = oneOrMany(files.Queues)
	p.VhostFD, p.VhostFDs = oneOrMany(files.Vhost)
	return p
}

// oneOrMany returns a list of descriptors as QEMU takes it: a single one has an option of its own.
func oneOrMany(descriptors []string) (one, many string) {
	if len(descriptors) == 1 {
		return descriptors[0], ""
	}
	return "", strings.Join(descriptors, ":")
}

type nicProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	pciPlace
	Netdev string `json:"netdev"`
	MAC    string `json:"mac"`
	MTU    int    `json:"host_mtu,omitempty"`
	MQ     bool   `json:"mq,omitempty"`
	// Vectors is two per queue, one for control, one for configuration changes.
	Vectors         int     `json:"vectors,omitempty"`
	RXQueueSize     int     `json:"rx_queue_size,omitempty"`
	TXQueueSize     int     `json:"tx_queue_size,omitempty"`
	HostUSO         *bool   `json:"host_uso,omitempty"`
	GuestUSO4       *bool   `json:"guest_uso4,omitempty"`
	GuestUSO6       *bool   `json:"guest_uso6,omitempty"`
	HostTunnel      *bool   `json:"host_tunnel,omitempty"`
	HostTunnelCsum  *bool   `json:"host_tunnel_csum,omitempty"`
	GuestTunnel     *bool   `json:"guest_tunnel,omitempty"`
	GuestTunnelCsum *bool   `json:"guest_tunnel_csum,omitempty"`
	BootIndex       uint32  `json:"bootindex,omitempty"`
	ACPIIndex       int     `json:"acpi-index,omitempty"`
	ROMFile         *string `json:"romfile,omitempty"`
}

// vfioProps are of a card of the node. QEMU opens the card's VFIO group by the address.
type vfioProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	pciPlace
	Host      string  `json:"host"`
	BootIndex uint32  `json:"bootindex,omitempty"`
	ACPIIndex int     `json:"acpi-index,omitempty"`
	ROMFile   *string `json:"romfile,omitempty"`
}

// Device returns the -device of the card.
func (n NIC) Device() any {
	if n.HostDevice != "" {
		p := vfioProps{Driver: n.Driver, ID: n.ID(), pciPlace: n.PCI.place(), Host: n.HostDevice, BootIndex: n.BootIndex, ACPIIndex: n.ACPIIndex}
		if n.BootIndex == 0 || n.NoROM {
			noROM := ""
			p.ROMFile = &noROM
		}
		return p
	}
	p := nicProps{Driver: n.Driver, ID: n.ID(), pciPlace: n.PCI.place(), Netdev: n.netdevID(), MAC: n.MAC, BootIndex: n.BootIndex, ACPIIndex: n.ACPIIndex}
	if n.BootIndex == 0 || n.NoROM {
		noROM := "" // no option ROM, no wait for PXE
		p.ROMFile = &noROM
	}
	if n.IsVirtio() {
		p.MTU, p.RXQueueSize, p.TXQueueSize = n.MTU, n.QueueSize, n.QueueSize
		off := false
		if n.NoUSO {
			p.HostUSO, p.GuestUSO4, p.GuestUSO6 = &off, &off, &off
		}
		if n.NoTunnels {
			p.HostTunnel, p.HostTunnelCsum, p.GuestTunnel, p.GuestTunnelCsum = &off, &off, &off, &off
		}
		if n.Queues > 1 {
			p.MQ, p.Vectors = true, 2*n.Queues+2
		}
	}
	return p
}

func (n NIC) entry() any    { return n }
func (NIC) parting() []Step { return nil }

// plugs reports whether QEMU plugs the card: in a root port, and with a tap, which comes by itself. passt and cards of the
// node come with their pod.
func (n NIC) plugs() bool {
	return n.PCI.plugs() && n.Passt == "" && n.HostDevice == "" && n.User == nil
}

type linkProps struct {
	Name string `json:"name"`
	Up   bool   `json:"up"`
}

// become puts the card's link up or down. Nothing else of a card changes while the guest has it.
func (n NIC) become(next live, _ liveFiles) []Change {
	to := next.(NIC)
	was := Step{Command: "set_link", Arguments: linkProps{n.ID(), !n.Down}}
	step := Step{Command: "set_link", Arguments: linkProps{n.ID(), !to.Down}, Undo: &was}
	if n.Down = to.Down; !reflect.DeepEqual(n, to) {
		return nil
	}
	return []Change{{Steps: []Step{step}, Entry: to}}
}

// IsVirtio reports whether the card is a virtio one.
func (n NIC) IsVirtio() bool { return strings.HasPrefix(n.Driver, "virtio-net-pci") }

// tapQueues returns how many queues of a tap QEMU inherits for the card.
func (n NIC) tapQueues() int {
	if n.User != nil || n.HostDevice != "" || n.Passt != "" {
		return 0
	}
	return n.Queues
}

// vhostQueues returns how many files of vhost-net QEMU inherits for the card.
func (n NIC) vhostQueues() int {
	if !n.Vhost {
		return 0
	}
	return n.tapQueues()
}
