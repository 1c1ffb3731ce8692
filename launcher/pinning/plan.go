// Package pinning says which CPU of the node each thread of a QEMU runs on, and has the kernel do so.
package pinning

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// CPU is one of the node's, as the kernel numbers them.
type CPU struct {
	// ID is the number by which threads are placed.
	ID int
	// Node is its NUMA node, Socket its package, and Core its core within the package.
	Node, Socket, Core int
}

// Plan is where threads run.
type Plan struct {
	// VCPUs is the CPU of each of the guest's, by QEMU's index, and Nodes the NUMA node of that CPU.
	VCPUs, Nodes []int
	// Others are the CPUs of all other threads.
	Others []int
}

// Sorted returns the CPUs in the order of their nodes, sockets and cores.
func Sorted(cpus []CPU) []CPU {
	return slices.SortedFunc(slices.Values(cpus), func(a, b CPU) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Socket, b.Socket), cmp.Compare(a.Core, b.Core), cmp.Compare(a.ID, b.ID))
	})
}

// New places the threads of a guest that has the CPUs to itself. It takes the CPUs in the order of their nodes, sockets
// and cores: QEMU numbers the threads of a core one after the other, and so threads of one core of the guest are
// threads of one core of the node, where the guest has as many. isolate keeps one CPU for the threads that are not the
// guest's CPUs.
func New(vcpus int, isolate bool, cpus []CPU) (*Plan, error) {
	need := vcpus
	if isolate {
		need++
	}
	sorted := Sorted(cpus)
	ids, nodes := make([]int, len(sorted)), make([]int, len(sorted))
	for i, c := range sorted {
		ids[i], nodes[i] = c.ID, c.Node
	}
	// With more CPUs than the pod asked for, the CPUs are those that the node's other pods have too.
	if len(ids) != need {
		return nil, fmt.Errorf("dedicated CPUs: the guest needs %s of the node to itself, and the pod has %s (CPUs %s): the node's kubelet needs the CPU manager policy static",
			count(need), amount(len(ids), need), List(ids))
	}
	plan := &Plan{VCPUs: ids[:vcpus], Nodes: nodes[:vcpus], Others: ids}
	if isolate {
		plan.Others = ids[vcpus:]
	}
	return plan, nil
}

// All returns the CPUs of all threads.
func (p *Plan) All() []int {
	all := slices.Concat(p.VCPUs, p.Others)
	slices.Sort(all)
	return slices.Compact(all)
}

// Near returns the CPUs of the guest's CPUs from first on, n of them. It is nil where all of the guest's CPUs are on
// one node: all CPUs are equally near then. Places for more CPUs have none.
func (p *Plan) Near(first, n int) []int {
	if len(slices.Compact(slices.Clone(p.Nodes))) < 2 {
		return nil
	}
	first, end := min(first, len(p.VCPUs)), min(first+n, len(p.VCPUs))
	return slices.Clone(p.VCPUs[first:max(first, end)])
}

func count(n int) string {
	if n == 1 {
		return "1 CPU"
	}
	return fmt.Sprintf("%d CPUs", n)
}

func amount(has, needs int) string {
	if has > needs {
		return fmt.Sprintf("%d, which are not its own", has)
	}
	return fmt.Sprintf("only %d", has)
}

// List writes CPUs as the kernel does: 0-3,8.
func List(ids []int) string {
	ids = slices.Sorted(slices.Values(ids))
	var parts []string
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) && ids[j+1] == ids[j]+1 {
			j++
		}
		part := strconv.Itoa(ids[i])
		if j > i {
			part += "-" + strconv.Itoa(ids[j])
		}
		parts, i = append(parts, part), j+1
	}
	return strings.Join(parts, ",")
}
