package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func hugePages(memory *v1.Memory, why *Decisions) int64 {
	why.add("hugePageBytes", "spec.domain.memory.hugepages.pageSize", "")
	return memory.Hugepages.Bytes()
}

// memoryPlaces is nil for a guest whose memory cannot grow: places cost the guest memory (package qemuargs, places.go).
func memoryPlaces(memory *v1.Memory, why *Decisions) *qemuargs.MemoryPlaces {
	const rule = "only if it is more than the guest begins with"
	why.add("memory", "spec.domain.memory.maxGuest spec.domain.memory.guest", rule)
	if memory.MaxGuest == nil || memory.MaxGuest.Cmp(*memory.Guest) <= 0 {
		return nil
	}
	why.add("memory.maxBytes", "spec.domain.memory.maxGuest spec.domain.memory.guest", rule)
	return &qemuargs.MemoryPlaces{MaxBytes: memory.MaxGuest.Value()}
}

// maxSockets is 0 for a guest that gets no more CPUs.
func maxSockets(cpu *v1.CPU, why *Decisions) uint32 {
	why.add("cpu.maxSockets", "spec.domain.cpu.maxSockets spec.domain.cpu.sockets", "only if there are more than the guest begins with")
	if cpu.MaxSockets <= cpu.Sockets {
		return 0
	}
	return cpu.MaxSockets
}

// keepsPages says whether the guest's pages stay QEMU's when the guest has freed them, as in KubeVirt. A huge page that QEMU
// gives back is another pod's before the guest wants it again, and the guest would be killed. A guest with CPUs of its own is not to
// wait for pages that it had before.
func keepsPages(domain *v1.DomainSpec) bool {
	return domain.Memory.Hugepages != nil || domain.CPU.Dedicated()
}
