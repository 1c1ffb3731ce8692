package qemuargs

import "strconv"

// To start a machine with hotplugged devices elsewhere, QEMU gets the machine's first -smp and
// -m, and after that a -device for each hotplugged device. So CPUs and memory have places in
// the Machine. No place is made before the guest's owner asks for it. QEMU itself pays nothing
// for places (less than 60 kB, and no time), but Linux does: per-CPU data for every possible
// CPU, and a bounce buffer of 64 MiB if memory may lie above 4 GiB.

// PluggedCPU is a CPU by its place, as query-hotpluggable-cpus tells it.
type PluggedCPU struct {
	ID     string `json:"id"`
	Socket uint32 `json:"socket"`
	Core   uint32 `json:"core,omitempty"`
	Thread uint32 `json:"thread,omitempty"`
}

// MemoryPlaces is how much memory the guest can have, and which devices were plugged.
type MemoryPlaces struct {
	// MaxBytes of RAM and devices together.
	MaxBytes int64          `json:"maxBytes"`
	Devices  []MemoryDevice `json:"devices,omitempty"`
}

// MemoryDevice is a virtio-mem device in a root port. Its address and the size
// of its blocks are written down: QEMU chooses them by the host's huge pages.
type MemoryDevice struct {
	ID string `json:"id"`
	// Bytes it can have, in blocks of BlockBytes, and RequestedBytes it shall have.
	Bytes          int64      `json:"bytes"`
	BlockBytes     int64      `json:"blockBytes"`
	RequestedBytes int64      `json:"requestedBytes"`
	Address        uint64     `json:"address"`
	PCI            PCIAddress `json:"pci"`
}

// memory is the value of -m.
func (m *Machine) memory() Options {
	mib := func(bytes int64) string { return strconv.FormatInt(bytes>>20, 10) + "M" }
	o := Options{{Key: "size", Value: mib(m.MemoryBytes), From: "memoryBytes"}}
	if m.Memory != nil {
		o = append(o, Option{Key: "maxmem", Value: mib(m.Memory.MaxBytes), From: "memory.maxBytes"})
	}
	return o
}

// smp is the value of -smp.
func (c CPU) smp() Options {
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	o := Options{{Value: strconv.Itoa(c.Count()), From: "sockets,cores,threads"}}
	sockets := Option{Key: "sockets", Value: number(c.Sockets), From: "sockets"}
	if c.MaxSockets > 0 {
		o = append(o, Option{Key: "maxcpus", Value: number(c.MaxSockets * c.Cores * c.Threads), From: "maxSockets,cores,threads"})
		sockets.Value, sockets.From = number(c.MaxSockets), "maxSockets"
	}
	return append(o, sockets, Option{Key: "cores", Value: number(c.Cores), From: "cores"}, Option{Key: "threads", Value: number(c.Threads), From: "threads"})
}

type pluggedCPUProps struct {
	Driver string `json:"driver" from:"/cpu.model"`
	ID     string `json:"id" from:"id"`
	Socket uint32 `json:"socket-id" from:"socket"`
	Core   uint32 `json:"core-id" from:"core"`
	Thread uint32 `json:"thread-id" from:"thread"`
}

type memoryBackendProps struct {
	QOMType string `json:"qom-type" rule:"memory of QEMU's own process"`
	ID      string `json:"id" from:"id"`
	Size    int64  `json:"size" from:"bytes"`
	Share   bool   `json:"share,omitempty" rule:"virtiofsd reads and writes the guest's memory"`
	Reserve bool   `json:"reserve" rule:"the memory is there as the guest uses it"`
}

type memoryDeviceProps struct {
	Driver string `json:"driver" rule:"memory that is plugged"`
	ID     string `json:"id" from:"id"`
	pciPlace
	Backend   string `json:"memdev" from:"id"`
	Block     int64  `json:"block-size" from:"blockBytes"`
	Requested int64  `json:"requested-size" from:"requestedBytes"`
	Address   uint64 `json:"memaddr" from:"address"`
}

// places are the CPUs and memory that were plugged.
func (m *Machine) places() []Arg {
	var args []Arg
	for _, c := range m.CPU.Plugged {
		args = append(args, Arg{Flag: "-device", Value: pluggedCPUProps{Driver: m.CPU.Model + cpuTypeSuffix, ID: c.ID, Socket: c.Socket, Core: c.Core, Thread: c.Thread}, Of: Part{Field: "cpu.plugged", Name: c.ID}})
	}
	if m.Memory == nil {
		return args
	}
	kind := "memory-backend-ram"
	if m.sharesMemory() {
		kind = "memory-backend-memfd"
	}
	for _, d := range m.Memory.Devices {
		backend, of := d.ID+"-ram", Part{Field: "memory.devices", Name: d.ID}
		args = append(args,
			Arg{Flag: "-object", Value: memoryBackendProps{QOMType: kind, ID: backend, Size: d.Bytes, Share: m.sharesMemory()}, Of: of},
			Arg{Flag: "-device", Value: memoryDeviceProps{Driver: "virtio-mem-pci", ID: d.ID, pciPlace: d.PCI.place(),
				Backend: backend, Block: d.BlockBytes, Requested: d.RequestedBytes, Address: d.Address}, Of: of})
	}
	return args
}
