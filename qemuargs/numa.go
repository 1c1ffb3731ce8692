package qemuargs

import "strconv"

// NUMANode is a NUMA node of the guest: CPUs that have QEMU's numbers from FirstCPU on, and memory. All CPUs that the machine can
// have are of a node.
type NUMANode struct {
	// ID is the node's number, from 0.
	ID          string `json:"id"`
	FirstCPU    int    `json:"firstCPU"`
	CPUs        int    `json:"cpus"`
	MemoryBytes int64  `json:"memoryBytes"`
	// TakenOn are CPUs of the host, by the kernel's numbers. Threads on these CPUs take the node's pages, and the kernel takes a
	// page near the thread that touches it first. None: threads on any CPU take the pages. The launcher knows its pod's CPUs, and writes
	// them anew on each host.
	TakenOn []int `json:"takenOn,omitempty"`
}

// cpus are the node's, as QEMU reads them: 0-3.
func (n NUMANode) cpus() string {
	first := strconv.Itoa(n.FirstCPU)
	if n.CPUs <= 1 {
		return first
	}
	return first + "-" + strconv.Itoa(n.FirstCPU+n.CPUs-1)
}

type nodeMemoryProps struct {
	QOMType  string `json:"qom-type" rule:"memory of QEMU's own process, of a kind that can be of huge pages"`
	ID       string `json:"id" from:"id"`
	Size     int64  `json:"size" from:"memoryBytes"`
	Share    bool   `json:"share,omitempty" rule:"virtiofsd reads and writes the guest's memory"`
	Huge     bool   `json:"hugetlb" rule:"a guest with NUMA nodes has huge pages"`
	Page     int64  `json:"hugetlbsize" from:"/hugePageBytes"`
	Prealloc bool   `json:"prealloc" rule:"QEMU takes all pages at its start: where one is missing it ends with an error, and the guest is not killed later"`
	Threads  string `json:"prealloc-context,omitempty" from:"takenOn"`
}

// threadsProps are threads that begin on some of the host's CPUs. QEMU places them before -sandbox denies it that.
type threadsProps struct {
	QOMType string `json:"qom-type" rule:"threads that take the node's pages: the kernel takes a page near the thread that touches it first"`
	ID      string `json:"id" from:"id"`
	CPUs    []int  `json:"cpu-affinity" from:"takenOn"`
}

// args are the node's memory, and the node.
func (n NUMANode) args(page int64, shared bool) []Arg {
	of := Part{Field: "numa", Name: n.ID}
	memory := nodeMemoryProps{QOMType: "memory-backend-memfd", ID: "ram-node" + n.ID, Size: n.MemoryBytes, Share: shared, Huge: true, Page: page, Prealloc: true}
	var args []Arg
	if len(n.TakenOn) > 0 {
		memory.Threads = "threads-node" + n.ID
		args = append(args, Arg{Flag: "-object", Value: threadsProps{QOMType: "thread-context", ID: memory.Threads, CPUs: n.TakenOn}, Of: of})
	}
	return append(args, Arg{Flag: "-object", Value: memory, Of: of},
		Arg{Flag: "-numa", Of: of, Value: Options{{Value: "node", Rule: "a NUMA node of the guest"}, {Key: "nodeid", Value: n.ID, From: "id"},
			{Key: "cpus", Value: n.cpus(), From: "firstCPU,cpus"}, {Key: "memdev", Value: memory.ID, From: "id"}}})
}
