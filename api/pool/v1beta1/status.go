package v1beta1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VirtualMachinePoolStatus is what there is.
type VirtualMachinePoolStatus struct {
	// Replicas is the number of VirtualMachines that are not being deleted.
	// +optional
	// +kubebuilder:default=0
	Replicas int32 `json:"replicas"`
	// ReadyReplicas is the number of those that are Ready: their guests run.
	// +optional
	// +kubebuilder:default=0
	ReadyReplicas int32 `json:"readyReplicas"`
	// Conditions are there only while they are True.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []VirtualMachinePoolCondition `json:"conditions,omitempty"`
	// LabelSelector is the selector as a text, for the scale subresource: a
	// HorizontalPodAutoscaler finds by it whose load counts.
	// +optional
	LabelSelector string `json:"labelSelector,omitempty"`
}

// VirtualMachinePoolConditionType names a condition of a VirtualMachinePool.
type VirtualMachinePoolConditionType string

// Conditions of a VirtualMachinePool, with KubeVirt's names. They are there only
// while they are True.
const (
	// VirtualMachinePoolReplicaFailure: VirtualMachines could not be made,
	// changed or deleted, or the spec is invalid; the reason says which.
	VirtualMachinePoolReplicaFailure VirtualMachinePoolConditionType = "ReplicaFailure"
	// VirtualMachinePoolReplicaPaused: nothing is made, changed or deleted.
	VirtualMachinePoolReplicaPaused VirtualMachinePoolConditionType = "ReplicaPaused"
)

// VirtualMachinePoolCondition is one condition of a VirtualMachinePool.
type VirtualMachinePoolCondition struct {
	Type VirtualMachinePoolConditionType `json:"type"`
	// Status is True, False or Unknown.
	Status metav1.ConditionStatus `json:"status"`
	// LastProbeTime has no value; it is there for KubeVirt's clients.
	// +optional
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// LastTransitionTime is when the status changed last.
	// +optional
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// Reason is why, in one word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is why, in a sentence.
	// +optional
	Message string `json:"message,omitempty"`
}

// Condition returns a condition, or nil.
func (s *VirtualMachinePoolStatus) Condition(t VirtualMachinePoolConditionType) *VirtualMachinePoolCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

// SetCondition makes a condition True, or changes its reason and message.
func (s *VirtualMachinePoolStatus) SetCondition(t VirtualMachinePoolConditionType, reason, message string, now metav1.Time) {
	c := s.Condition(t)
	if c == nil {
		s.Conditions = append(s.Conditions, VirtualMachinePoolCondition{Type: t, Status: metav1.ConditionTrue, LastTransitionTime: now})
		c = &s.Conditions[len(s.Conditions)-1]
	}
	c.Reason, c.Message = reason, message
}

// RemoveCondition removes a condition.
func (s *VirtualMachinePoolStatus) RemoveCondition(t VirtualMachinePoolConditionType) {
	s.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions), func(c VirtualMachinePoolCondition) bool { return c.Type == t })
}
