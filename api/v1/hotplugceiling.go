package v1

import (
	"fmt"
	"math/bits"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// KubeVirt's rules of a guest whose memory can grow: Linux needs the memory above 4 GiB that it is told of, and a virtio-mem
// device has blocks of 2 MiB, or of the guest's huge pages.
const (
	minGrowingMemory = int64(1) << 30
	memoryBlock      = int64(2) << 20
)

// maxAPICID is the last number by which an interrupt finds a CPU without the host's help.
const maxAPICID = 254

// APICSockets is how many sockets a machine can have: each level of a CPU's APIC ID takes whole bits, so that sockets of 3 cores have the numbers of 4.
func (c *CPU) APICSockets() uint32 {
	threadBits, coreBits := bits.Len32(max(c.Threads, 1)-1), bits.Len32(max(c.Cores, 1)-1)
	last := uint64(max(c.Cores, 1)-1)<<threadBits + uint64(max(c.Threads, 1)-1) // of a socket
	if last > maxAPICID {
		return 1
	}
	return uint32((maxAPICID-last)>>(threadBits+coreBits)) + 1
}

// LimitMaxSockets makes MaxSockets as large as a machine can have it. An instancetype does not know how a preference lays out its
// CPUs: 32 sockets of one core each are 32 sockets of 32 cores each with a preference for cores.
func (c *CPU) LimitMaxSockets() {
	if perSocket := uint64(c.Cores) * uint64(c.Threads); perSocket > 0 && uint64(c.MaxSockets)*perSocket > MaxVCPUs {
		c.MaxSockets = max(c.Sockets, uint32(MaxVCPUs/perSocket))
	}
	c.MaxSockets = min(c.MaxSockets, max(c.Sockets, c.APICSockets()))
}

// validateCeiling returns what is wrong with cpu.maxSockets and memory.maxGuest, the most that a guest can grow to.
func validateCeiling(d *DomainSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c := d.CPU; c.MaxSockets != 0 {
		at := path.Child("cpu", "maxSockets")
		if c.MaxSockets < c.Sockets {
			errs = append(errs, field.Invalid(at, c.MaxSockets, fmt.Sprintf("must not be less than cpu.sockets (%d)", c.Sockets)))
		}
		if n := float64(c.Cores) * float64(c.MaxSockets) * float64(c.Threads); n > MaxVCPUs {
			errs = append(errs, field.Invalid(at, c.MaxSockets, fmt.Sprintf("cores × maxSockets × threads must be at most %d", MaxVCPUs)))
		} else if most := max(c.Sockets, c.APICSockets()); c.MaxSockets > most {
			errs = append(errs, field.Invalid(at, c.MaxSockets, fmt.Sprintf("must be at most %d with sockets of %d cores × %d threads, whose APIC IDs take whole bits", most, c.Cores, c.Threads)))
		}
	}
	if d.Memory.MaxGuest == nil {
		return errs
	}
	at, most, guest := path.Child("memory", "maxGuest"), d.Memory.MaxGuest, d.Memory.Guest.Value()
	invalid := func(why string) { errs = append(errs, field.Invalid(at, most.String(), why)) }
	block := max(memoryBlock, d.Memory.Hugepages.Bytes())
	switch n := most.Value(); {
	case !within(*most, 0, maxGuestMemory):
		invalid("must be at most 4Ei")
	case n < guest:
		invalid(fmt.Sprintf("must not be less than memory.guest (%s)", d.Memory.Guest.String()))
	case guest < minGrowingMemory:
		invalid("needs a memory.guest of at least 1Gi")
	case n%block != 0 || guest%block != 0:
		invalid(fmt.Sprintf("must be a multiple of %d MiB, and so must memory.guest (%s)", block>>20, d.Memory.Guest.String()))
	}
	return errs
}
