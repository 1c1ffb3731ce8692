package resolve

import (
	"slices"
	"strconv"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// numa gives the guest a node for each of the host's on which it has CPUs, as KubeVirt does. The launcher's CPUs are in the order of the
// host's nodes, and the guest's CPUs have the first of them. The memory is divided evenly, in whole huge pages. Where nothing is
// known of the host's nodes, the guest has one.
func numa(domain *v1.DomainSpec, host Host, memory int64, why *Decisions) []qemuargs.NUMANode {
	const field, facts = "spec.domain.cpu.numa.guestMappingPassthrough", "host.cpuNodes[*]"
	// Each CPU and each page can make a node more, or less.
	const count = field + " " + facts + " " + vcpus + " =memoryBytes =hugePageBytes"
	why.add("numa", field, "none, unless the guest is to see nodes")
	if !domain.CPU.MapsNUMA() {
		return nil
	}
	cpus := int(domain.CPU.VCPUs())
	known := slices.Clone(host.CPUNodes[:min(len(host.CPUNodes), cpus)])
	slices.Sort(known)
	var nodes []qemuargs.NUMANode
	for i := range cpus {
		if i == 0 || i < len(known) && known[i] != known[i-1] {
			nodes = append(nodes, qemuargs.NUMANode{ID: strconv.Itoa(len(nodes)), FirstCPU: i})
		}
		nodes[len(nodes)-1].CPUs++
	}
	page := domain.Memory.Hugepages.Bytes()
	if pages := memory / page; pages < int64(len(nodes)) { // a node without memory is none
		nodes = []qemuargs.NUMANode{{ID: "0", CPUs: cpus}}
	}
	pages, n := memory/page, int64(len(nodes))
	for i := range nodes {
		mine := pages / n
		if int64(i) < pages%n {
			mine++
		}
		nodes[i].MemoryBytes = mine * page
		part := "numa[" + nodes[i].ID + "]"
		why.add(part, count, "a node for each of the host's on which the guest has CPUs")
		why.add(part+".id", "", "the nodes are numbered")
		why.add(part+".firstCPU", count, "the guest's CPUs have those of the host in the order of the host's nodes")
		why.add(part+".cpus", count+" spec.domain.cpu.maxSockets", "as many as the guest has of the host's node; the last node has the places for more")
		why.add(part+".memoryBytes", count, "the guest's memory, divided evenly in whole pages")
	}
	last := &nodes[len(nodes)-1]
	if more := maxSockets(domain.CPU, nil); more > 0 {
		last.CPUs += int(more-domain.CPU.Sockets) * int(domain.CPU.Cores) * int(domain.CPU.Threads)
	}
	return nodes
}
