package v1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// IOThreadsPolicy is how QEMU's threads for disks are shared out. The threads serve disks on bus virtio, and
// the SCSI controller.
type IOThreadsPolicy string

// Policies.
const (
	// IOThreadsPolicyShared: the disks that have no thread of their own share one.
	IOThreadsPolicyShared IOThreadsPolicy = "shared"
	// IOThreadsPolicyAuto: there are up to twice as many threads as CPUs that the pod requests, and the disks
	// that have no thread of their own take turns.
	IOThreadsPolicyAuto IOThreadsPolicy = "auto"
	// IOThreadsPolicySupplementalPool: each disk's queues are spread over all threads of a pool.
	IOThreadsPolicySupplementalPool IOThreadsPolicy = "supplementalPool"
)

// DiskIOThreads is the pool of the policy supplementalPool.
type DiskIOThreads struct {
	// SupplementalPoolThreadCount is the number of threads. The policy supplementalPool needs it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	SupplementalPoolThreadCount *uint32 `json:"supplementalPoolThreadCount,omitempty"`
}

// MaxIOThreads bounds the threads of one machine. Each takes memory that the pod has booked.
const MaxIOThreads = 64

func validateIOThreads(d *DomainSpec, path *field.Path) field.ErrorList {
	policy := ptr.Deref(d.IOThreadsPolicy, "")
	errs := oneOf(policy, path.Child("ioThreadsPolicy"), "", IOThreadsPolicyShared, IOThreadsPolicyAuto, IOThreadsPolicySupplementalPool)
	count := path.Child("ioThreads", "supplementalPoolThreadCount")
	var threads *uint32
	if d.IOThreads != nil {
		threads = d.IOThreads.SupplementalPoolThreadCount
	}
	own := 0
	for _, disk := range d.Devices.Disks {
		if ptr.Deref(disk.DedicatedIOThread, false) {
			own++
		}
	}
	if own > MaxIOThreads {
		errs = append(errs, field.Invalid(path.Child("devices", "disks"), own, fmt.Sprintf("a machine has %d threads for disks at most, and more disks ask for their own (dedicatedIOThread)", MaxIOThreads)))
	}
	switch {
	case threads == nil && policy == IOThreadsPolicySupplementalPool:
		errs = append(errs, field.Required(count, "the policy supplementalPool needs the number of its threads"))
	case threads == nil:
	case policy != IOThreadsPolicySupplementalPool:
		errs = append(errs, field.Forbidden(count, "only the policy supplementalPool has a pool of threads"))
	case *threads < 1 || *threads > MaxIOThreads:
		errs = append(errs, field.Invalid(count, *threads, fmt.Sprintf("must be between 1 and %d", MaxIOThreads)))
	}
	return errs
}
