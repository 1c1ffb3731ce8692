package qemuargs

type memoryProps struct {
	QOMType string `json:"qom-type" from:"hugePageBytes" rule:"memory of QEMU's own process"`
	ID      string `json:"id" rule:"the name that migration knows"`
	Size    int64  `json:"size" from:"memoryBytes"`
}

// sharedMemoryProps is memory that the programs beside QEMU can map too: a file in memory that has no name.
type sharedMemoryProps struct {
	QOMType  string `json:"qom-type" from:"hugePageBytes" rule:"memory of QEMU's own process, of a kind that other programs can map"`
	ID       string `json:"id" rule:"the name that migration knows"`
	Size     int64  `json:"size" from:"memoryBytes"`
	Share    bool   `json:"share" rule:"virtiofsd reads and writes the guest's memory"`
	Prealloc bool   `json:"prealloc,omitempty" from:"preallocMemory" rule:"QEMU takes all pages at its start, so that they are its own container's"`
}

// hugeMemoryProps is memory of huge pages. The kernel gives QEMU the pages through a file in memory that has no name: no
// file system of huge pages is mounted.
type hugeMemoryProps struct {
	QOMType  string `json:"qom-type" from:"hugePageBytes" rule:"memory of QEMU's own process, of a kind that can be of huge pages"`
	ID       string `json:"id" rule:"the name that migration knows"`
	Size     int64  `json:"size" from:"memoryBytes"`
	Share    bool   `json:"share,omitempty" rule:"virtiofsd reads and writes the guest's memory"`
	Huge     bool   `json:"hugetlb" from:"hugePageBytes" rule:"the memory is huge pages"`
	Page     int64  `json:"hugetlbsize" from:"hugePageBytes"`
	Prealloc bool   `json:"prealloc" from:"hugePageBytes" rule:"QEMU takes all pages at its start: where one is missing it ends with an error, and the guest is not killed later"`
}

// sharesMemory says whether programs beside QEMU map the guest's memory, and so all of it, whenever it was plugged.
func (m *Machine) sharesMemory() bool { return len(m.FileSystems) > 0 }

// ram is the memory backend of the guest's RAM, or of each of its NUMA nodes.
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
	const memfd = "memory-backend-memfd"
	arg := Arg{Flag: "-object", From: "memoryBytes,hugePageBytes,numa"}
	switch {
	case m.HugePageBytes != 0:
		arg.Value = hugeMemoryProps{QOMType: memfd, ID: m.ramID(), Size: m.MemoryBytes, Share: m.sharesMemory(), Huge: true, Page: m.HugePageBytes, Prealloc: true}
	case m.sharesMemory():
		arg.Value = sharedMemoryProps{QOMType: memfd, ID: m.ramID(), Size: m.MemoryBytes, Share: true, Prealloc: m.PreallocMemory}
	default:
		arg.Value = memoryProps{QOMType: "memory-backend-ram", ID: m.ramID(), Size: m.MemoryBytes}
	}
	return arg
}
