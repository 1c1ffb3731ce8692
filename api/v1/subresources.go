package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// What is sent to subresources.kubevirt.io. An empty body is all defaults.

// StartOptions of virtualmachines/start.
type StartOptions struct {
	metav1.TypeMeta `json:",inline"`
	// Paused has the guest's CPUs wait until it is unpaused.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// DryRun is empty or All: nothing is done then.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// StopOptions of virtualmachines/stop.
type StopOptions struct {
	metav1.TypeMeta `json:",inline"`
	// GracePeriod is how long the guest has to shut down, in seconds, where it is
	// less than its terminationGracePeriodSeconds. 0 ends it at once.
	// +optional
	GracePeriod *int64 `json:"gracePeriod,omitempty"`
	// DryRun is empty or All: nothing is done then.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// RestartOptions of virtualmachines/restart.
type RestartOptions struct {
	metav1.TypeMeta `json:",inline"`
	// GracePeriodSeconds of 0 ends the guest at once; nothing else is supported.
	// +optional
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"`
	// DryRun is empty or All: nothing is done then.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// PauseOptions of virtualmachineinstances/pause.
type PauseOptions struct {
	metav1.TypeMeta `json:",inline"`
	// DryRun is empty or All: nothing is done then.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// UnpauseOptions of virtualmachineinstances/unpause.
type UnpauseOptions struct {
	metav1.TypeMeta `json:",inline"`
	// DryRun is empty or All: nothing is done then.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}
