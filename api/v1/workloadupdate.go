package v1

import "slices"

// WorkloadUpdateStrategy says what becomes of guests whose launchers are of another image than new ones.
type WorkloadUpdateStrategy struct {
	// WorkloadUpdateMethods: with LiveMigrate, guests that can migrate move to launchers of the present image. Evict has no effect:
	// other guests keep their launchers until they are started again. Default: every guest keeps its launcher.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	WorkloadUpdateMethods []WorkloadUpdateMethod `json:"workloadUpdateMethods,omitempty"`
	// BatchEvictionSize has no effect.
	// +optional
	BatchEvictionSize *int `json:"batchEvictionSize,omitempty"`
	// BatchEvictionInterval has no effect.
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

// Moves says whether guests that can migrate move to launchers of the present image. s may be nil.
func (s *WorkloadUpdateStrategy) Moves() bool {
	return s != nil && slices.Contains(s.WorkloadUpdateMethods, WorkloadUpdateLiveMigrate)
}
