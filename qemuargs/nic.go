package qemuargs

import (
	"strconv"
	"strings"
)

// NIC is a network card and the tap behind it.
type NIC struct {
	Name string `json:"name"`
	// Driver is a QEMU network device such as virtio-net-pci-non-transitional.
	Driver string `json:"driver"`
	MAC    string `json:"mac"`
	// MTU is told to the guest by virtio; 0 leaves it out.
	MTU int `json:"mtu,omitempty"`
	// Queues is the number of tap queues, at least 1.
	Queues int `json:"queues"`
	// BootIndex 0 means that the card is not booted from.
	BootIndex uint32     `json:"bootIndex,omitempty"`
	PCI       PCIAddress `json:"pci"`
}

// ID is the QEMU device id of the card.
func (n NIC) ID() string { return "nic-" + n.Name }

func (n NIC) netdevID() string { return "net-" + n.Name }

type tapProps struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	FD   string `json:"fd,omitempty"`
	FDs  string `json:"fds,omitempty"`
}

// Netdev is the -netdev of the card; taps are the child's file descriptors of
// its queues.
func (n NIC) Netdev(taps []int) any {
	p := tapProps{Type: "tap", ID: n.netdevID()}
	numbers := make([]string, len(taps))
	for i, fd := range taps {
		numbers[i] = strconv.Itoa(fd)
	}
	if len(taps) == 1 {
		p.FD = numbers[0]
	} else {
		p.FDs = strings.Join(numbers, ":")
	}
	return p
}

type nicProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	Bus    string `json:"bus"`
	Addr   string `json:"addr"`
	Netdev string `json:"netdev"`
	MAC    string `json:"mac"`
	MTU    int    `json:"host_mtu,omitempty"`
	MQ     bool   `json:"mq,omitempty"`
	// Vectors is two per queue, one for control, one for configuration changes.
	Vectors   int     `json:"vectors,omitempty"`
	BootIndex uint32  `json:"bootindex,omitempty"`
	ROMFile   *string `json:"romfile,omitempty"`
}

// Device is the -device of the card.
func (n NIC) Device() any {
	p := nicProps{Driver: n.Driver, ID: n.ID(), Bus: n.PCI.Bus, Addr: n.PCI.addr(), Netdev: n.netdevID(), MAC: n.MAC, BootIndex: n.BootIndex}
	if n.BootIndex == 0 {
		noROM := "" // no option ROM, no wait for PXE
		p.ROMFile = &noROM
	}
	if n.IsVirtio() {
		p.MTU = n.MTU
		if n.Queues > 1 {
			p.MQ, p.Vectors = true, 2*n.Queues+2
		}
	}
	return p
}

// IsVirtio says whether the card is a virtio one.
func (n NIC) IsVirtio() bool { return strings.HasPrefix(n.Driver, "virtio-net-pci") }
