package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// VirtualMachineInstanceReplicaSet keeps a number of VirtualMachineInstances
// of one template running: one that ends is replaced. They are alike and have
// no disks of their own. kubectl scale and HorizontalPodAutoscalers change
// their number.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachineinstancereplicasets,shortName=vmirs;vmirss,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.labelSelector
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=.spec.replicas,description="How many VirtualMachineInstances there are to be"
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=.status.replicas,description="How many there are that neither ended nor are being deleted"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=.status.readyReplicas,description="How many of them run"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
type VirtualMachineInstanceReplicaSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineInstanceReplicaSetSpec `json:"spec"`
	// +optional
	Status VirtualMachineInstanceReplicaSetStatus `json:"status,omitempty"`
}

// VirtualMachineInstanceReplicaSetList is a list of VirtualMachineInstanceReplicaSets.
//
// +kubebuilder:object:root=true
type VirtualMachineInstanceReplicaSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineInstanceReplicaSet `json:"items"`
}

// VirtualMachineInstanceReplicaSetSpec says how many VirtualMachineInstances
// of what there are to be.
//
// +kubebuilder:validation:XValidation:rule="(has(self.template.spec.domain.memory) && has(self.template.spec.domain.memory.guest)) || (has(self.template.spec.domain.resources) && ((has(self.template.spec.domain.resources.requests) && 'memory' in self.template.spec.domain.resources.requests) || (has(self.template.spec.domain.resources.limits) && 'memory' in self.template.spec.domain.resources.limits)))",message="no memory: set memory.guest, resources.requests.memory or resources.limits.memory",fieldPath=".template.spec.domain.memory"
// +kubebuilder:validation:XValidation:rule="!has(self.template.spec.domain.devices) || !has(self.template.spec.domain.devices.interfaces) || self.template.spec.domain.devices.interfaces.all(i, has(i.masquerade) || has(i.bridge) || has(i.sriov) || has(i.passtBinding) || has(i.binding) || has(i.slirp) || has(i.macvtap) || has(i.passt))",message="exactly one binding must be set (supported: bridge, masquerade)",fieldPath=".template.spec.domain.devices.interfaces"
type VirtualMachineInstanceReplicaSetSpec struct {
	// Replicas is how many VirtualMachineInstances there are to be that have
	// not ended. Of too many, those are deleted first that are not ready, and
	// of these the newest. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`
	// Selector must match the template's labels. VirtualMachineInstances that
	// it matches and that nobody controls are taken over; those of this
	// ReplicaSet that it does not match any more are let go.
	Selector *metav1.LabelSelector `json:"selector"`
	// Template of the VirtualMachineInstances. Its metadata's name, or else
	// generateName, is what their names begin with, before five characters;
	// default: the ReplicaSet's name. A change holds for those that are made
	// afterwards.
	Template VirtualMachineInstanceTemplateSpec `json:"template"`
	// Paused: VirtualMachineInstances are neither made nor deleted; those that
	// are there run on. The condition ReplicaPaused says that it was noticed.
	// +optional
	Paused bool `json:"paused,omitempty"`
}

// VirtualMachineInstanceReplicaSetStatus is what there is.
type VirtualMachineInstanceReplicaSetStatus struct {
	// Replicas is the number of VirtualMachineInstances that neither ended nor
	// are being deleted.
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
	Conditions []VirtualMachineInstanceReplicaSetCondition `json:"conditions,omitempty"`
	// LabelSelector is the selector as a text, for the scale subresource: a
	// HorizontalPodAutoscaler finds by it whose load counts.
	// +optional
	LabelSelector string `json:"labelSelector,omitempty"`
}

// VirtualMachineInstanceReplicaSetConditionType names a condition of a
// VirtualMachineInstanceReplicaSet.
type VirtualMachineInstanceReplicaSetConditionType string

// Conditions of a VirtualMachineInstanceReplicaSet, with KubeVirt's names. They
// are there only while they are True.
const (
	// VirtualMachineInstanceReplicaSetReplicaFailure: VirtualMachineInstances
	// could not be made or deleted, or the spec is invalid; the reason says which.
	VirtualMachineInstanceReplicaSetReplicaFailure VirtualMachineInstanceReplicaSetConditionType = "ReplicaFailure"
	// VirtualMachineInstanceReplicaSetReplicaPaused: nothing is made or deleted.
	VirtualMachineInstanceReplicaSetReplicaPaused VirtualMachineInstanceReplicaSetConditionType = "ReplicaPaused"
)

// VirtualMachineInstanceReplicaSetCondition is one condition of a
// VirtualMachineInstanceReplicaSet.
type VirtualMachineInstanceReplicaSetCondition struct {
	Type VirtualMachineInstanceReplicaSetConditionType `json:"type"`
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
func (s *VirtualMachineInstanceReplicaSetStatus) Condition(t VirtualMachineInstanceReplicaSetConditionType) *VirtualMachineInstanceReplicaSetCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

// SetCondition makes a condition True, or changes its reason and message.
func (s *VirtualMachineInstanceReplicaSetStatus) SetCondition(t VirtualMachineInstanceReplicaSetConditionType, reason, message string, now metav1.Time) {
	c := s.Condition(t)
	if c == nil {
		s.Conditions = append(s.Conditions, VirtualMachineInstanceReplicaSetCondition{Type: t, Status: metav1.ConditionTrue, LastTransitionTime: now})
		c = &s.Conditions[len(s.Conditions)-1]
	}
	c.Reason, c.Message = reason, message
}

// RemoveCondition removes a condition.
func (s *VirtualMachineInstanceReplicaSetStatus) RemoveCondition(t VirtualMachineInstanceReplicaSetConditionType) {
	var kept []VirtualMachineInstanceReplicaSetCondition
	for _, c := range s.Conditions {
		if c.Type != t {
			kept = append(kept, c)
		}
	}
	s.Conditions = kept
}

// WantedReplicas is how many VirtualMachineInstances there are to be.
func (rs *VirtualMachineInstanceReplicaSet) WantedReplicas() int {
	if rs.Spec.Replicas == nil {
		return 1
	}
	return int(*rs.Spec.Replicas)
}

// ValidateReplicaSet returns every error of a ReplicaSet at once, with exact
// paths. Of the template it finds what would be wrong with every
// VirtualMachineInstance that is made from it.
func ValidateReplicaSet(rs *VirtualMachineInstanceReplicaSet) field.ErrorList {
	spec, path := &rs.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if rs.WantedReplicas() < 0 {
		errs = append(errs, field.Invalid(path.Child("replicas"), rs.WantedReplicas(), "must not be negative"))
	}
	errs = append(errs, validateSelector(spec, path)...)
	return InOrder(append(errs, ValidateTemplate(&spec.Template, path.Child("template"))...))
}

// validateSelector also refuses a selector that matches everything: it would
// take over every VirtualMachineInstance of the namespace.
func validateSelector(spec *VirtualMachineInstanceReplicaSetSpec, parent *field.Path) field.ErrorList {
	path := parent.Child("selector")
	if spec.Selector == nil || len(spec.Selector.MatchLabels)+len(spec.Selector.MatchExpressions) == 0 {
		return field.ErrorList{field.Required(path, "must match the labels of the template")}
	}
	errs := validation.ValidateLabelSelector(spec.Selector, validation.LabelSelectorValidationOptions{}, path)
	if len(errs) > 0 {
		return errs
	}
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	if err != nil {
		return field.ErrorList{field.Invalid(path, spec.Selector, err.Error())}
	}
	if have := labels.Set(spec.Template.ObjectMeta.Labels); !selector.Matches(have) {
		return field.ErrorList{field.Invalid(parent.Child("template", "metadata", "labels"), have.String(), "the selector "+selector.String()+" does not match them")}
	}
	return nil
}
