package v1

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// ClusterMigrationConfiguration bounds the migrations of a cluster.
type ClusterMigrationConfiguration struct {
	MigrationConfiguration       `json:",inline"`
	UnusedMigrationConfiguration `json:",inline"`
	// NodeDrainTaintKey is the key of a taint. Guests leave a node that has it with the effect NoSchedule, if their evictionStrategy has
	// them move and they do not tolerate it. Default: kubevirt.io/drain.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	NodeDrainTaintKey *string `json:"nodeDrainTaintKey,omitempty"`
}

// UnusedMigrationConfiguration holds what nothing reads yet. The condition FieldsWithoutEffect says why of
// each field that is set.
type UnusedMigrationConfiguration struct {
	// UnsafeMigrationOverride has no effect.
	// +optional
	UnsafeMigrationOverride *bool `json:"unsafeMigrationOverride,omitempty"`
	// DisableTLS has no effect.
	// +optional
	DisableTLS *bool `json:"disableTLS,omitempty"`
	// Network has no effect.
	// +optional
	Network *string `json:"network,omitempty"`
	// MatchSELinuxLevelOnMigration has no effect.
	// +optional
	MatchSELinuxLevelOnMigration *bool `json:"matchSELinuxLevelOnMigration,omitempty"`
	// UtilityVolumesTimeout has no effect.
	// +optional
	UtilityVolumesTimeout *int64 `json:"utilityVolumesTimeout,omitempty"`
	// Experimental has no effect.
	// +optional
	Experimental *Kept `json:"experimental,omitempty"`
}

// MigrationConfiguration bounds migrations. A migration keeps what held when it began.
type MigrationConfiguration struct {
	// ParallelMigrationsPerCluster is how many migrations run at a time. Default: 5.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ParallelMigrationsPerCluster *uint32 `json:"parallelMigrationsPerCluster,omitempty"`
	// ParallelOutboundMigrationsPerNode is how many guests leave one node at a time. Default: 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ParallelOutboundMigrationsPerNode *uint32 `json:"parallelOutboundMigrationsPerNode,omitempty"`
	// BandwidthPerMigration bounds what a migration sends in a second. 0 is no bound. Default: 0.
	// +optional
	BandwidthPerMigration *resource.Quantity `json:"bandwidthPerMigration,omitempty"`
	// CompletionTimeoutPerGiB is how long a migration may take for each GiB of the guest's memory and of
	// disks that are copied. Unit: seconds. More than 86400, a day, counts as a day. Default: 150.
	// +optional
	// +kubebuilder:validation:Minimum=1
	CompletionTimeoutPerGiB *int64 `json:"completionTimeoutPerGiB,omitempty"`
	// ProgressTimeout is how long a migration may go on without getting nearer to its end. Unit: seconds.
	// Default: 150.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ProgressTimeout *int64 `json:"progressTimeout,omitempty"`
	// MaxDowntimeMs is how long the guest's CPUs may stand still while the last bytes are copied. Unit:
	// milliseconds. Default: 300 (KubeVirt: 900).
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60000
	MaxDowntimeMs *uint64 `json:"maxDowntimeMs,omitempty"`
	// AllowAutoConverge lets QEMU slow the guest down if the guest changes memory faster than it is copied.
	// Default: false.
	// +optional
	AllowAutoConverge *bool `json:"allowAutoConverge,omitempty"`
	// AllowPostCopy lets a guest go on at the target before its memory is there, where the copying of memory
	// would end without success, because it takes longer than completionTimeoutPerGiB or progressTimeout allow.
	// If a node or the connection between the nodes fails from then on, the guest is lost. Default: false.
	// +optional
	AllowPostCopy *bool `json:"allowPostCopy,omitempty"`
	// AllowWorkloadDisruption: false forbids post-copy. Default: what allowPostCopy says. Without allowPostCopy
	// it has no effect: no guest is paused so that its migration ends.
	// +optional
	AllowWorkloadDisruption *bool `json:"allowWorkloadDisruption,omitempty"`
}

// Defaults of a MigrationConfiguration, KubeVirt's but for the downtime. KubeVirt's field comments give them.
const (
	defaultParallelMigrations = 5
	defaultOutboundMigrations = 2
	defaultCompletionPerGiB   = 150
	defaultProgressTimeout    = 150
	defaultMaxDowntime        = 300
)

// Migrations returns what bounds migrations; nil stands for the defaults.
func (c *KubeVirtConfiguration) Migrations() *MigrationConfiguration {
	if c == nil || c.MigrationConfiguration == nil {
		return nil
	}
	return &c.MigrationConfiguration.MigrationConfiguration
}

// defaultDrainTaintKey is KubeVirt's.
const defaultDrainTaintKey = "kubevirt.io/drain"

// DrainTaintKey returns the key of the taint by which the guests of a node are to leave it.
func (c *KubeVirtConfiguration) DrainTaintKey() string {
	if c == nil || c.MigrationConfiguration == nil || c.MigrationConfiguration.NodeDrainTaintKey == nil {
		return defaultDrainTaintKey
	}
	return *c.MigrationConfiguration.NodeDrainTaintKey
}

// Parallel returns how many migrations run at a time in the cluster.
func (c *MigrationConfiguration) Parallel() int {
	return int(valueOr(c, func(c *MigrationConfiguration) *uint32 { return c.ParallelMigrationsPerCluster },
		defaultParallelMigrations))
}

// Outbound returns how many guests leave one node at a time.
func (c *MigrationConfiguration) Outbound() int {
	return int(valueOr(c, func(c *MigrationConfiguration) *uint32 { return c.ParallelOutboundMigrationsPerNode },
		defaultOutboundMigrations))
}

// Bandwidth returns how many bytes a migration may send in a second; 0 is no bound.
func (c *MigrationConfiguration) Bandwidth() int64 {
	if c == nil || c.BandwidthPerMigration == nil {
		return 0
	}
	return max(c.BandwidthPerMigration.Value(), 0)
}

const (
	// MaxMigrationTime is the longest that the copying of a guest may take, however large the guest is: a migration takes a place that others wait
	// for. A launcher refuses more.
	MaxMigrationTime = 24 * time.Hour
	// longestStall, in seconds, bounds the times of a configuration: a day.
	longestStall = 24 * 60 * 60
)

// Completion returns how long the copying of a number of bytes may take. A part of a GiB counts as a whole one.
func (c *MigrationConfiguration) Completion(bytes int64) time.Duration {
	const gib = 1 << 30
	perGiB := valueOr(c, func(c *MigrationConfiguration) *int64 { return c.CompletionTimeoutPerGiB },
		defaultCompletionPerGiB)
	most := int64(MaxMigrationTime / time.Second)
	parts := min(max(bytes/gib+min(bytes%gib, 1), 1), most)
	return time.Duration(min(min(perGiB, longestStall)*parts, most)) * time.Second
}

// Progress returns how long a migration may go on without getting nearer to its end.
func (c *MigrationConfiguration) Progress() time.Duration {
	return time.Duration(min(valueOr(c, func(c *MigrationConfiguration) *int64 { return c.ProgressTimeout },
		defaultProgressTimeout), longestStall)) * time.Second
}

// Downtime returns how long the guest's CPUs may stand still.
func (c *MigrationConfiguration) Downtime() time.Duration {
	return time.Duration(valueOr(c, func(c *MigrationConfiguration) *uint64 { return c.MaxDowntimeMs },
		defaultMaxDowntime)) * time.Millisecond
}

// AutoConverge reports whether QEMU may slow the guest down.
func (c *MigrationConfiguration) AutoConverge() bool {
	return valueOr(c, func(c *MigrationConfiguration) *bool { return c.AllowAutoConverge }, false)
}

// PostCopy reports whether the guest may go on at the target before its memory is there.
func (c *MigrationConfiguration) PostCopy() bool {
	return valueOr(c, func(c *MigrationConfiguration) *bool { return c.AllowPostCopy }, false) &&
		valueOr(c, func(c *MigrationConfiguration) *bool { return c.AllowWorkloadDisruption }, true)
}

func valueOr[T any](c *MigrationConfiguration, of func(*MigrationConfiguration) *T, fallback T) T {
	if c == nil {
		return fallback
	}
	if v := of(c); v != nil {
		return *v
	}
	return fallback
}
