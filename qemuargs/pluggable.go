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

// memory returns the value of -m.
func (m *Machine) memory() Options {
	mib := func(bytes int64) string { return strconv.FormatInt(bytes>>20, 10) + "M" }
	o := Options{{Key: "size", Value: mib(m.MemoryBytes)}}
	if m.Memory != nil {
		o = append(o, Option{Key: "maxmem", Value: mib(m.Memory.MaxBytes)})
	}
	return o
}

// smp returns the value of -smp.
func (c CPU) smp() Options {
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	o := Options{{Value: strconv.Itoa(c.Count())}}
	sockets := Option{Key: "sockets", Value: number(c.Sockets)}
	if c.MaxSockets > 0 {
		o = append(o, Option{Key: "maxcpus", Value: number(c.MaxSockets * c.Cores * c.Threads)})
		sockets.Value = number(c.MaxSockets)
	}
	return append(o, sockets, Option{Key: "cores", Value: number(c.Cores)}, Option{Key: "threads", Value: number(c.Threads)})
}

type pluggedCPUProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	Socket uint32 `json:"socket-id"`
	Core   uint32 `json:"core-id"`
	Thread uint32 `json:"thread-id"`
}

type memoryBackendProps struct {
	QOMType string `json:"qom-type"`
	ID      string `json:"id"`
	Size    int64  `json:"size"`
	Share   bool   `json:"share,omitempty"`
	Reserve bool   `json:"reserve"`
}

type memoryDeviceProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	pciPlace
	Backend   string `json:"memdev"`
	Block     int64  `json:"block-size"`
	Requested int64  `json:"requested-size"`
	Address   uint64 `json:"memaddr"`
}

// cpuPlace is a plugged CPU as a part. model is the machine's.
type cpuPlace struct {
	fixed
	model string
	PluggedCPU
}

func (cpuPlace) inherits() []Inherited { return nil }
func (cpuPlace) plugs() bool           { return true }
func (c cpuPlace) entry() any          { return c.PluggedCPU }

func (c cpuPlace) args(files) []Arg {
	return []Arg{{Flag: "-device", Value: pluggedCPUProps{Driver: c.model + cpuTypeSuffix, ID: c.ID, Socket: c.Socket,
		Core: c.Core, Thread: c.Thread}}}
}

// memoryPlace is a memory device as a part. shared memory is the guest's and other programs'.
type memoryPlace struct {
	simple
	shared bool
	MemoryDevice
}

func (memoryPlace) inherits() []Inherited { return nil }
func (memoryPlace) plugs() bool           { return true }
func (d memoryPlace) entry() any          { return d.MemoryDevice }

func (d memoryPlace) args(files) []Arg {
	kind, backend := "memory-backend-ram", d.ID+"-ram"
	if d.shared {
		kind = "memory-backend-memfd"
	}
	return []Arg{
		{Flag: "-object", Value: memoryBackendProps{QOMType: kind, ID: backend, Size: d.Bytes, Share: d.shared}},
		{Flag: "-device", Value: memoryDeviceProps{Driver: "virtio-mem-pci", ID: d.ID, pciPlace: d.PCI.place(),
			Backend: backend, Block: d.BlockBytes, Requested: d.RequestedBytes, Address: d.Address}},
	}
}

type qomProps struct {
	Path     string `json:"path"`
	Property string `json:"property"`
	Value    int64  `json:"value"`
}

// become asks the guest to take memory, or to give it back.
func (d memoryPlace) become(next live, _ liveFiles) []Change {
	to := next.(memoryPlace)
	asks := func(bytes int64) Step {
		return Step{Command: "qom-set", Arguments: qomProps{"/machine/peripheral/" + d.ID, "requested-size", bytes}}
	}
	was, step := asks(d.RequestedBytes), asks(to.RequestedBytes)
	step.Undo = &was
	if d.RequestedBytes = to.RequestedBytes; d != to {
		return nil
	}
	return []Change{{Steps: []Step{step}, Entry: to.MemoryDevice}}
}
