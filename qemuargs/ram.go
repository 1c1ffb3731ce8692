package qemuargs

// ramProps is memory of QEMU's own process. Shared memory and huge pages need a file in memory that has no name
// (memory-backend-memfd): no file system of huge pages is mounted.
type ramProps struct {
	QOMType string `json:"qom-type"`
	// ID of the guest's whole RAM is the name that migration knows.
	ID   string `json:"id"`
	Size int64  `json:"size"`
	// Share: programs beside QEMU read and write the guest's memory.
	Share bool  `json:"share,omitempty"`
	Huge  bool  `json:"hugetlb,omitempty"`
	Page  int64 `json:"hugetlbsize,omitempty"`
	// Prealloc: QEMU takes all pages at its start. Where a huge page is missing it ends with an error, and the guest is
	// not killed later. Shared memory is its own container's then.
	Prealloc bool   `json:"prealloc,omitempty"`
	Threads  string `json:"prealloc-context,omitempty"`
}

// sharesMemory reports whether programs beside QEMU map the guest's memory, and so all of it, whenever it was plugged.
func (m *Machine) sharesMemory() bool { return len(m.FileSystems) > 0 }

// ram returns the memory backend of the guest's RAM, or of each of its NUMA nodes.
func (m *Machine) ram() []Arg {
	var args []Arg
	for _, n := range m.NUMA {
		args = append(args, n.args(m.HugePageBytes, m.sharesMemory())...)
	}
	if len(args) == 0 {
		args = append(args, m.wholeRAM())
	}
	return args
}

func (m *Machine) wholeRAM() Arg {
	ram := ramProps{QOMType: "memory-backend-ram", ID: m.ramID(), Size: m.MemoryBytes, Share: m.sharesMemory()}
	ram.Huge, ram.Page = m.HugePageBytes != 0, m.HugePageBytes
	ram.Prealloc = ram.Huge || m.PreallocMemory
	if ram.Huge || ram.Share {
		ram.QOMType = "memory-backend-memfd"
	}
	return Arg{Flag: "-object", Value: ram}
}
