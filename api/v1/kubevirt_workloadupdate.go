package v1

import (
	"slices"
	"time"

	"k8s.io/utils/ptr"
)

// WorkloadUpdateStrategy says what becomes of guests whose launchers are of another image than new ones.
type WorkloadUpdateStrategy struct {
	// WorkloadUpdateMethods: with LiveMigrate, guests that can migrate move to launchers of the present image. With Evict, the launcher pods
	// of other guests are evicted: each guest shuts down, and starts again if its runStrategy says so. With Evict alone, so are those of
	// guests that could migrate. Default: every guest keeps its launcher.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	WorkloadUpdateMethods []WorkloadUpdateMethod `json:"workloadUpdateMethods,omitempty"`
	// BatchEvictionSize is how many guests are evicted in each batchEvictionInterval at most. With 0 none is. Default: 10.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BatchEvictionSize *int `json:"batchEvictionSize,omitempty"`
	// BatchEvictionInterval is the time between two batches of evictions, such as 1m30s. Default: 1m.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	BatchEvictionInterval string `json:"batchEvictionInterval,omitempty"`
}

// WorkloadUpdateMethod is a way to replace a launcher.
//
// +kubebuilder:validation:Enum=LiveMigrate;Evict
type WorkloadUpdateMethod string

// Methods, KubeVirt's.
const (
	WorkloadUpdateLiveMigrate WorkloadUpdateMethod = "LiveMigrate"
	WorkloadUpdateEvict       WorkloadUpdateMethod = "Evict"
)

// Moves reports whether guests that can migrate move to launchers of the present image. s may be nil.
func (s *WorkloadUpdateStrategy) Moves() bool {
	return s != nil && slices.Contains(s.WorkloadUpdateMethods, WorkloadUpdateLiveMigrate)
}

// Evicts reports whether the launcher pods of guests that do not move are evicted. s may be nil.
func (s *WorkloadUpdateStrategy) Evicts() bool {
	return s != nil && slices.Contains(s.WorkloadUpdateMethods, WorkloadUpdateEvict)
}

// KubeVirt's defaults.
const (
	defaultBatchSize     = 10
	defaultBatchInterval = time.Minute
)

// BatchSize returns how many guests are evicted in each BatchInterval at most.
func (s *WorkloadUpdateStrategy) BatchSize() int {
	return ptr.Deref(s.BatchEvictionSize, defaultBatchSize)
}

// BatchInterval returns the time between two batches of evictions. A text that is no time, which validation refuses, is
// the default.
func (s *WorkloadUpdateStrategy) BatchInterval() time.Duration {
	if d, err := time.ParseDuration(s.BatchEvictionInterval); err == nil && d >= 0 {
		return d
	}
	return defaultBatchInterval
}

// Outdated reports whether a guest has a launcher of another image than the given ones, which new launchers have.
func (vmi *VirtualMachineInstance) Outdated(images ...string) bool {
	image := vmi.Status.LauncherContainerImageVersion
	return image != "" && !slices.Contains(images, image) && !vmi.IsFinal()
}
