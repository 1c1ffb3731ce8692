package v1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReplicaStatus is the status of a ReplicaSet or a pool. Its replicas are
// VirtualMachineInstances or VirtualMachines.
type ReplicaStatus struct {
	// Replicas is the number of replicas that neither ended nor are being deleted.
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
	Conditions []ReplicaCondition `json:"conditions,omitempty"`
	// LabelSelector is the selector as text, for the scale subresource: a
	// HorizontalPodAutoscaler finds by it the pods whose load counts.
	// +optional
	LabelSelector string `json:"labelSelector,omitempty"`
}

// ReplicaConditionType names a condition of a ReplicaSet or a pool.
type ReplicaConditionType string

// Conditions of ReplicaSets and pools, with KubeVirt's names. They are there only
// while they are True.
const (
	// ReplicaFailure: replicas could not be made, changed or deleted, or the spec is invalid,
	// as the reason says.
	ReplicaFailure ReplicaConditionType = "ReplicaFailure"
	// ReplicaPaused: nothing is made, changed or deleted.
	ReplicaPaused ReplicaConditionType = "ReplicaPaused"
)

// ReplicaCondition is one condition of a ReplicaSet or a pool.
type ReplicaCondition struct {
	Type ReplicaConditionType `json:"type"`
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
func (s *ReplicaStatus) Condition(t ReplicaConditionType) *ReplicaCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

// SetCondition makes a condition True, or changes its reason and message.
func (s *ReplicaStatus) SetCondition(t ReplicaConditionType, reason, message string, now metav1.Time) {
	c := s.Condition(t)
	if c == nil {
		s.Conditions = append(s.Conditions, ReplicaCondition{Type: t, Status: metav1.ConditionTrue, LastTransitionTime: now})
		c = &s.Conditions[len(s.Conditions)-1]
	}
	c.Reason, c.Message = reason, message
}

// RemoveCondition removes a condition.
func (s *ReplicaStatus) RemoveCondition(t ReplicaConditionType) {
	s.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions), func(c ReplicaCondition) bool { return c.Type == t })
}
