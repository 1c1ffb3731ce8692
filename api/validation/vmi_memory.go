package validation

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// minGuestMemory is KubeVirt's: less than 1 M is taken for a missing unit.
const minGuestMemory = int64(1_000_000)

func validateMemory(d *v1.DomainSpec, path *field.Path) field.ErrorList {
	guest := d.Memory.Guest
	if guest == nil {
		return field.ErrorList{noMemory(path)}
	}
	var errs field.ErrorList
	if !within(*guest, minGuestMemory, maxGuestMemory) {
		errs = append(errs, field.Invalid(path.Child("memory", "guest"), guest.String(), "must be between 1M and 4Ei"))
	}
	errs = append(errs, validateHugepages(d.Memory, path.Child("memory"))...)
	errs = append(errs, validateReservedOverhead(d.Memory, path.Child("memory"))...)
	return append(errs, validateResources(d, path.Child("resources"))...)
}

// noMemory returns the error of a guest without memory.
func noMemory(domain *field.Path) *field.Error {
	return field.Required(domain.Child("memory", "guest"),
		"no memory requested: set it, or resources.requests.memory, or resources.limits.memory")
}

// KubeVirt's rules of a guest whose memory can grow: Linux needs the memory above 4 GiB that it is told of, and a
// virtio-mem device has blocks of 2 MiB, or of the guest's huge pages.
const (
	minGrowingMemory = int64(1) << 30
	memoryBlock      = int64(2) << 20
)

// validateCeiling returns what is wrong with cpu.maxSockets and memory.maxGuest, the most that a guest can grow to.
func validateCeiling(d *v1.DomainSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c := d.CPU; c.MaxSockets != 0 {
		at := path.Child("cpu", "maxSockets")
		if c.MaxSockets < c.Sockets {
			errs = append(errs, field.Invalid(at, c.MaxSockets,
				fmt.Sprintf("must not be less than cpu.sockets (%d)", c.Sockets)))
		}
		if n := float64(c.Cores) * float64(c.MaxSockets) * float64(c.Threads); n > v1.MaxVCPUs {
			errs = append(errs, field.Invalid(at, c.MaxSockets,
				fmt.Sprintf("cores × maxSockets × threads must be at most %d", v1.MaxVCPUs)))
		} else if most := max(c.Sockets, c.APICSockets()); c.MaxSockets > most {
			errs = append(errs, field.Invalid(at, c.MaxSockets,
				fmt.Sprintf("must be at most %d with sockets of %d cores × %d threads, whose APIC IDs take whole bits", most,
					c.Cores, c.Threads)))
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
		invalid(fmt.Sprintf("must be a multiple of %d MiB, and so must memory.guest (%s)", block>>20,
			d.Memory.Guest.String()))
	}
	return errs
}

func validateHugepages(m *v1.Memory, path *field.Path) field.ErrorList {
	if m.Hugepages == nil {
		return nil
	}
	at := path.Child("hugepages", "pageSize")
	page := m.Hugepages.Bytes()
	if page == 0 {
		return field.ErrorList{field.NotSupported(at, m.Hugepages.PageSize, []string{"1Gi", "2Mi"})}
	}
	if guest := m.Guest.Value(); guest < page || guest%page != 0 {
		return field.ErrorList{field.Invalid(path.Child("guest"), m.Guest.String(),
			fmt.Sprintf("must be a multiple of memory.hugepages.pageSize (%s)", m.Hugepages.PageSize))}
	}
	return nil
}

func validateReservedOverhead(m *v1.Memory, path *field.Path) field.ErrorList {
	if m.ReservedOverhead == nil {
		return nil
	}
	var errs field.ErrorList
	path = path.Child("reservedOverhead")
	if added := m.ReservedOverhead.AddedOverhead; added != nil && !within(*added, 0, maxDiskBytes) {
		errs = append(errs, field.Invalid(path.Child("addedOverhead"), m.ReservedOverhead.AddedOverhead.String(),
			"must be between 0 and 64Ti"))
	}
	switch m.ReservedOverhead.MemLock {
	case "", v1.MemLockNotRequired, v1.MemLockRequired:
	default:
		errs = append(errs, field.NotSupported(path.Child("memLock"), m.ReservedOverhead.MemLock,
			[]v1.MemLock{v1.MemLockRequired, v1.MemLockNotRequired}))
	}
	return errs
}
