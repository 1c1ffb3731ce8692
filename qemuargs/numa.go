package qemuargs

import "strconv"

// NUMANode is a NUMA node of the guest: CPUs that have QEMU's numbers from FirstCPU on, and memory. All CPUs that the
// machine can have are of a node.
type NUMANode struct {
	// ID is the node's number, from 0.
	ID          string `json:"id"`
	FirstCPU    int    `json:"firstCPU"`
	CPUs        int    `json:"cpus"`
	MemoryBytes int64  `json:"memoryBytes"`
	// TakenOn are CPUs of the host, by the kernel's numbers. Threads on these CPUs take the node's pages, and the kernel
	// takes a page near the thread that touches it first. None: threads on any CPU take the pages. The launcher knows its
	// pod's CPUs, and writes them anew on each host.
	TakenOn []int `json:"takenOn,omitempty"`
}

// cpus returns the node's CPUs, as QEMU reads them: 0-3.
func (n NUMANode) cpus() string {
	first := strconv.Itoa(n.FirstCPU)
	if n.CPUs <= 1 {
		return first
	}
	return first + "-" + strconv.Itoa(n.FirstCPU+n.CPUs-1)
}

// threadsProps are threads that begin on some of the host's CPUs. QEMU places them before -sandbox denies it that.
type threadsProps struct {
	QOMType string `json:"qom-type"`
	ID      string `json:"id"`
	CPUs    []int  `json:"cpu-affinity"`
}

// args returns the node's memory, and the node.
func (n NUMANode) args(page int64, shared bool) []Arg {
	memory := ramProps{QOMType: "memory-backend-memfd", ID: "ram-node" + n.ID, Size: n.MemoryBytes, Share: shared, Huge: true, Page: page, Prealloc: true}
	var args []Arg
	if len(n.TakenOn) > 0 {
		memory.Threads = "threads-node" + n.ID
		args = append(args, Arg{Flag: "-object", Value: threadsProps{QOMType: "thread-context", ID: memory.Threads, CPUs: n.TakenOn}})
	}
	return append(args, Arg{Flag: "-object", Value: memory},
		Arg{Flag: "-numa", Value: Options{{Value: "node"}, {Key: "nodeid", Value: n.ID},
			{Key: "cpus", Value: n.cpus()}, {Key: "memdev", Value: memory.ID}}})
}
