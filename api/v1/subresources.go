package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Bodies of requests to subresources.kubevirt.io. An empty body means all defaults.

// StartOptions of virtualmachines/start.
type StartOptions struct {
	metav1.TypeMeta `json:",inline"`
	// Paused keeps the guest's CPUs stopped until it is unpaused.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// DryRun is empty, or All: then nothing is done.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// StopOptions of virtualmachines/stop.
type StopOptions struct {
	metav1.TypeMeta `json:",inline"`
	// GracePeriod is how long the guest has to shut down, in seconds, if that is less than its
	// terminationGracePeriodSeconds. 0 ends the guest at once.
	// +optional
	GracePeriod *int64 `json:"gracePeriod,omitempty"`
	// DryRun is empty, or All: then nothing is done.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// RestartOptions of virtualmachines/restart.
type RestartOptions struct {
	metav1.TypeMeta `json:",inline"`
	// GracePeriodSeconds of 0 ends the guest at once. Other values are refused.
	// +optional
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"`
	// DryRun is empty, or All: then nothing is done.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// PauseOptions of virtualmachineinstances/pause.
type PauseOptions struct {
	metav1.TypeMeta `json:",inline"`
	// DryRun is empty, or All: then nothing is done.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// UnpauseOptions of virtualmachineinstances/unpause.
type UnpauseOptions struct {
	metav1.TypeMeta `json:",inline"`
	// DryRun is empty, or All: then nothing is done.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// MigrateOptions of virtualmachines/migrate.
type MigrateOptions struct {
	metav1.TypeMeta `json:",inline"`
	// DryRun is empty, or All: then nothing is done.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
	// AddedNodeSelector is the migration's addedNodeSelector.
	// +optional
	AddedNodeSelector map[string]string `json:"addedNodeSelector,omitempty"`
}

// EvacuateCancelOptions of virtualmachines/evacuate/cancel and virtualmachineinstances/evacuate/cancel.
type EvacuateCancelOptions struct {
	metav1.TypeMeta `json:",inline"`
	// DryRun is empty, or All: then nothing is done.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
	// EvacuationNodeName is the node that the guest was asked to leave. Another node is refused. It may
	// be empty.
	// +optional
	EvacuationNodeName string `json:"evacuationNodeName,omitempty"`
}
