package v1

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
