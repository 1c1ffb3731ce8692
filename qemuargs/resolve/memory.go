package resolve

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func hugePages(memory *v1.Memory) int64 {
	return memory.Hugepages.Bytes()
}

// memoryPlaces returns nil for a guest whose memory cannot grow: places cost the guest memory (package qemuargs,
// pluggable.go).
func memoryPlaces(memory *v1.Memory) *qemuargs.MemoryPlaces {
	if memory.MaxGuest == nil || memory.MaxGuest.Cmp(*memory.Guest) <= 0 {
		return nil
	}
	return &qemuargs.MemoryPlaces{MaxBytes: memory.MaxGuest.Value()}
}

// maxSockets returns 0 for a guest that gets no more CPUs.
func maxSockets(cpu *v1.CPU) uint32 {
	if cpu.MaxSockets <= cpu.Sockets {
		return 0
	}
	return cpu.MaxSockets
}

// smallAddresses is how much memory a CPU with 40 bits for addresses can have, in bytes. QEMU puts up to 4 GiB of
// devices below, up to 32 GiB above, and nothing into the last 12 GiB of an AMD CPU's TiB.
const smallAddresses = int64(960) << 30

// fitsAddresses refuses memory that the CPU model cannot address. All of QEMU's models have 40 bits but those that take
// the host's own.
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
