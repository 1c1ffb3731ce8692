package resolve

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

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
// wait for pages that it had before. An annotation asks for the same.
func keepsPages(vmi *v1.VirtualMachineInstance) bool {
	domain := &vmi.Spec.Domain
	return domain.Memory.Hugepages != nil || domain.CPU.Dedicated() || vmi.Annotations[v1.NoFreePageReportingAnnotation] == "true"
}

// smallAddresses is how much memory a CPU with 40 bits for addresses can have, in bytes. QEMU puts up to 4 GiB of devices below, up to 32 GiB above, and
// nothing into the last 12 GiB of an AMD CPU's TiB.
const smallAddresses = int64(960) << 30

// fitsAddresses refuses memory that the CPU model cannot address. All of QEMU's models have 40 bits but those that take the host's own.
func fitsAddresses(domain *v1.DomainSpec, m *qemuargs.Machine, path *field.Path) *field.Error {
	if m.Accelerator == qemuargs.KVM && (m.CPU.Model == "host" || m.CPU.Model == "max") {
		return nil
	}
	const why = "the CPU model %s addresses at most 960Gi; host-passthrough and host-model address what the node does, if the node has KVM"
	switch {
	case m.MemoryBytes > smallAddresses:
		return field.Invalid(path.Child("guest"), domain.Memory.Guest.String(), fmt.Sprintf(why, m.CPU.Model))
	case m.Memory != nil && m.Memory.MaxBytes > smallAddresses:
		return field.Invalid(path.Child("maxGuest"), domain.Memory.MaxGuest.String(), fmt.Sprintf(why, m.CPU.Model))
	}
	return nil
}
