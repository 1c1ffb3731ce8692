package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VirtualMachineInstanceReplicaSet keeps a number of VirtualMachineInstances of one template
// running, and replaces those that end. They are alike and have no disks of their own. kubectl
// scale and HorizontalPodAutoscalers change their number.
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
	// Status may have fields of KubeVirt's that are not here: an object that was read from KubeVirt is applied as it is. They are not kept.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status ReplicaStatus `json:"status,omitempty"`
}

// VirtualMachineInstanceReplicaSetList is a list of VirtualMachineInstanceReplicaSets.
//
// +kubebuilder:object:root=true
type VirtualMachineInstanceReplicaSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineInstanceReplicaSet `json:"items"`
}

// VirtualMachineInstanceReplicaSetSpec is the number and the template of
// VirtualMachineInstances.
//
// +kubebuilder:validation:XValidation:rule="(has(self.template.spec.domain.memory) && has(self.template.spec.domain.memory.guest)) || (has(self.template.spec.domain.resources) && ((has(self.template.spec.domain.resources.requests) && 'memory' in self.template.spec.domain.resources.requests) || (has(self.template.spec.domain.resources.limits) && 'memory' in self.template.spec.domain.resources.limits)))",message="no memory: set memory.guest, resources.requests.memory or resources.limits.memory",fieldPath=".template.spec.domain.memory"
// +kubebuilder:validation:XValidation:rule="!has(self.template.spec.domain.devices) || !has(self.template.spec.domain.devices.interfaces) || self.template.spec.domain.devices.interfaces.all(i, has(i.masquerade) || has(i.bridge) || has(i.sriov) || has(i.passtBinding) || has(i.binding) || has(i.slirp) || has(i.macvtap) || has(i.passt))",message="exactly one binding must be set (supported: bridge, masquerade, sriov, passtBinding, binding)",fieldPath=".template.spec.domain.devices.interfaces"
type VirtualMachineInstanceReplicaSetSpec struct {
	// Replicas is the wanted number of VirtualMachineInstances that have not ended. Of too
	// many, those that are not ready are deleted first, and then the newest. At most 1000. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`
	// Selector must match the template's labels. The ReplicaSet takes over
	// VirtualMachineInstances that it matches and that have no controller, and lets go its own
	// that it no longer matches.
	Selector *metav1.LabelSelector `json:"selector"`
	// Template of the VirtualMachineInstances. Their names are its metadata.name, or else
	// generateName, or else the ReplicaSet's name, and five characters. A change holds for
	// VirtualMachineInstances that are made later.
	Template VirtualMachineInstanceTemplateSpec `json:"template"`
	// Paused: no VirtualMachineInstances are made or deleted; existing ones run on. The
	// condition ReplicaPaused confirms it. Default: false.
	// +optional
	Paused bool `json:"paused,omitempty"`
}

// ReplicaStatus returns the status, as a pool does.
func (rs *VirtualMachineInstanceReplicaSet) ReplicaStatus() *ReplicaStatus { return &rs.Status }

// WantedReplicas returns the wanted number of VirtualMachineInstances.
func (rs *VirtualMachineInstanceReplicaSet) WantedReplicas() int {
	if rs.Spec.Replicas == nil {
		return 1
	}
	return int(*rs.Spec.Replicas)
}

// MaxReplicas is how many members a ReplicaSet, or a pool, may have.
const MaxReplicas = 1000
