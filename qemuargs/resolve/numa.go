package resolve

import (
	"slices"
	"strconv"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// numa gives the guest a node for each of the host's on which it has CPUs, as KubeVirt does. The launcher's CPUs are in
// the order of the host's nodes, and the guest's CPUs have the first of them. The memory is divided evenly, in whole
// huge pages. Where nothing is known of the host's nodes, the guest has one.
func numa(domain *v1.DomainSpec, host Host, memory int64) []qemuargs.NUMANode {
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
	}
	last := &nodes[len(nodes)-1]
	if more := maxSockets(domain.CPU); more > 0 {
		last.CPUs += int(more-domain.CPU.Sockets) * int(domain.CPU.Cores) * int(domain.CPU.Threads)
	}
	return nodes
}
