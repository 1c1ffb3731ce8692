package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// RevisionLabel of a pool's VirtualMachines, and of their guests, identifies the template that
// they were made from. The name is KubeVirt's.
const RevisionLabel = v1.PoolRevisionLabel

// VirtualMachinePool keeps a number of VirtualMachines of one template. They are called
// <pool>-0, <pool>-1 and so on; a deleted one comes back under its name. kubectl scale and
// HorizontalPodAutoscalers change their number.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachinepools,shortName=vmpool;vmpools,categories=all
// +kubebuilder:metadata:labels="kubevirt.io="
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.labelSelector
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=.spec.replicas,description="How many VirtualMachines there are to be"
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=.status.replicas,description="How many there are that are not being deleted"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=.status.readyReplicas,description="How many of their guests run"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 52",message="the name is longer than 52 characters: no room is left in a label for the revision behind it"
type VirtualMachinePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachinePoolSpec `json:"spec"`
	// Status may have fields of KubeVirt's that are not here: an object that was read from KubeVirt is applied as it is. They are not kept.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status v1.ReplicaStatus `json:"status,omitempty"`
}

// ReplicaStatus returns the status, as a ReplicaSet does.
func (p *VirtualMachinePool) ReplicaStatus() *v1.ReplicaStatus { return &p.Status }

// VirtualMachinePoolList is a list of VirtualMachinePools.
//
// +kubebuilder:object:root=true
type VirtualMachinePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachinePool `json:"items"`
}

// VirtualMachinePoolSpec is the number and the template of VirtualMachines.
type VirtualMachinePoolSpec struct {
	// Replicas is the wanted number of VirtualMachines, running or not. A VirtualMachine that
	// is being deleted counts until it is gone. At most 1000. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`
	// Selector must match the labels of virtualMachineTemplate. Autoscalers find by it the pods
	// whose load counts: give the labels to the guests (template.metadata of the
	// VirtualMachine) too. Owner references, not the selector, say what belongs to the pool: it
	// takes over nothing, and a VirtualMachine without its owner reference has left the pool.
	Selector *metav1.LabelSelector `json:"selector"`
	// VirtualMachineTemplate is what the VirtualMachines are made from. updateStrategy says
	// what a change does to existing ones.
	VirtualMachineTemplate VirtualMachineTemplateSpec `json:"virtualMachineTemplate"`
	// Paused: no VirtualMachines are made, changed or deleted; existing ones run on. The
	// condition ReplicaPaused confirms it. Default: false.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// NameGeneration appends the index of a VirtualMachine to names in its template.
	// +optional
	NameGeneration *VirtualMachinePoolNameGeneration `json:"nameGeneration,omitempty"`
	// MaxUnavailable is how many VirtualMachines, or how much of replicas
	// ("20%", rounded down), may be without a running guest while proactive
	// updates restart guests; at least 1. Default: 100%.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^(100|[0-9]{1,2})%$`
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// ScaleInStrategy says which VirtualMachines are deleted when there are too
	// many. Default: proactive, random ones.
	// +optional
	ScaleInStrategy *VirtualMachinePoolScaleInStrategy `json:"scaleInStrategy,omitempty"`
	// UpdateStrategy says what a change of the template does to existing VirtualMachines.
	// Default: proactive, which restarts guests.
	// +optional
	UpdateStrategy *VirtualMachinePoolUpdateStrategy `json:"updateStrategy,omitempty"`

	// Autohealing is refused: not supported yet. The run strategy says whether a guest that
	// ends is started again.
	// +optional
	Autohealing *v1.Unsupported `json:"autohealing,omitempty"`
}

// VirtualMachineTemplateSpec is what VirtualMachines are made from.
type VirtualMachineTemplateSpec struct {
	// ObjectMeta: every VirtualMachine gets the labels and annotations. Other metadata has no
	// effect.
	// +optional
	// +nullable
	ObjectMeta v1.TemplateMeta `json:"metadata,omitempty"`
	// Spec of every VirtualMachine. All of them share a persistentVolumeClaim that it names.
	Spec v1.VirtualMachineSpec `json:"spec"`
}

// VirtualMachinePoolNameGeneration appends indices to names.
type VirtualMachinePoolNameGeneration struct {
	// AppendIndexToConfigMapRefs: where the template has a volume of the ConfigMap x, the
	// VirtualMachine <pool>-3 has one of x-3. Default: false.
	// +optional
	AppendIndexToConfigMapRefs *bool `json:"appendIndexToConfigMapRefs,omitempty"`
	// AppendIndexToSecretRefs: where the template names the Secret x for
	// cloud-init or has a volume of it, the VirtualMachine <pool>-3 gets its data from x-3. Secrets
	// with credentials of registries keep their names. Default: false.
	// +optional
	AppendIndexToSecretRefs *bool `json:"appendIndexToSecretRefs,omitempty"`
}

// VirtualMachinePoolScaleInStrategy says which VirtualMachines are deleted when there are too
// many. No strategy deletes PersistentVolumeClaims.
//
// +kubebuilder:validation:XValidation:rule="[has(self.unmanaged), has(self.opportunistic), has(self.proactive)].filter(s, s).size() <= 1",message="only one strategy may be set"
type VirtualMachinePoolScaleInStrategy struct {
	// Unmanaged: the pool deletes none; you delete them yourself.
	// +optional
	Unmanaged *VirtualMachinePoolUnmanagedStrategy `json:"unmanaged,omitempty"`
	// Opportunistic: the pool deletes none; those that you delete do not come back.
	// +optional
	Opportunistic *VirtualMachinePoolOpportunisticScaleInStrategy `json:"opportunistic,omitempty"`
	// Proactive: the pool deletes VirtualMachines; their guests are shut down.
	// +optional
	Proactive *VirtualMachinePoolProactiveScaleInStrategy `json:"proactive,omitempty"`
}

// VirtualMachinePoolOpportunisticScaleInStrategy leaves deletion to others.
type VirtualMachinePoolOpportunisticScaleInStrategy struct {
	// StatePreservation says what is kept of a VirtualMachine. Disabled and
	// Offline are the same here: its PersistentVolumeClaims. Online is refused:
	// not supported yet. Default: Disabled.
	// +optional
	// +kubebuilder:validation:Enum=Disabled;Offline;Online
	// +kubebuilder:validation:XValidation:rule="self != 'Online'",message="not supported yet"
	StatePreservation *StatePreservation `json:"statePreservation,omitempty"`
}

// VirtualMachinePoolProactiveScaleInStrategy deletes VirtualMachines.
type VirtualMachinePoolProactiveScaleInStrategy struct {
	// SelectionPolicy says which are deleted first.
	// +optional
	SelectionPolicy *VirtualMachinePoolSelectionPolicy `json:"selectionPolicy,omitempty"`
	// StatePreservation says what is kept of a VirtualMachine. Disabled and
	// Offline are the same here: its PersistentVolumeClaims. Online is refused:
	// not supported yet. Default: Disabled.
	// +optional
	// +kubebuilder:validation:Enum=Disabled;Offline;Online
	// +kubebuilder:validation:XValidation:rule="self != 'Online'",message="not supported yet"
	StatePreservation *StatePreservation `json:"statePreservation,omitempty"`
}

// StatePreservation says what is kept of a VirtualMachine that is deleted.
type StatePreservation string

// What is kept.
const (
	StatePreservationDisabled StatePreservation = "Disabled"
	StatePreservationOffline  StatePreservation = "Offline"
)

// VirtualMachinePoolSelectionPolicy says which VirtualMachines come first.
type VirtualMachinePoolSelectionPolicy struct {
	// SortPolicy: AscendingOrder and DescendingOrder are by index, Newest and
	// Oldest by age. Default: Random.
	// +optional
	// +kubebuilder:validation:Enum=AscendingOrder;DescendingOrder;Newest;Oldest;Random
	SortPolicy *VirtualMachinePoolSortPolicy `json:"sortPolicy,omitempty"`

	// Selectors are refused: not supported yet.
	// +optional
	Selectors *v1.Unsupported `json:"selectors,omitempty"`
}

// VirtualMachinePoolSortPolicy is an order of VirtualMachines.
type VirtualMachinePoolSortPolicy string

// Orders of VirtualMachines.
const (
	SortAscending  VirtualMachinePoolSortPolicy = "AscendingOrder"
	SortDescending VirtualMachinePoolSortPolicy = "DescendingOrder"
	SortNewest     VirtualMachinePoolSortPolicy = "Newest"
	SortOldest     VirtualMachinePoolSortPolicy = "Oldest"
	SortRandom     VirtualMachinePoolSortPolicy = "Random"
)

// VirtualMachinePoolUpdateStrategy says what a change of the template does to existing
// VirtualMachines. A change that others made to a VirtualMachine's spec is overwritten only
// when the pool's template changes.
//
// +kubebuilder:validation:XValidation:rule="[has(self.unmanaged), has(self.opportunistic), has(self.proactive)].filter(s, s).size() <= 1",message="only one strategy may be set"
type VirtualMachinePoolUpdateStrategy struct {
	// Unmanaged: the change holds for VirtualMachines that are made later.
	// +optional
	Unmanaged *VirtualMachinePoolUnmanagedStrategy `json:"unmanaged,omitempty"`
	// Opportunistic: every VirtualMachine gets the new spec; running guests get it at their
	// next start.
	// +optional
	Opportunistic *VirtualMachinePoolOpportunisticUpdateStrategy `json:"opportunistic,omitempty"`
	// Proactive: every VirtualMachine gets the new spec. Guests whose own spec it changes are
	// restarted, at most maxUnavailable at a time, except with run strategy Once.
	// +optional
	Proactive *VirtualMachinePoolProactiveUpdateStrategy `json:"proactive,omitempty"`
}

// VirtualMachinePoolUnmanagedStrategy has no settings.
type VirtualMachinePoolUnmanagedStrategy struct{}

// VirtualMachinePoolOpportunisticUpdateStrategy has no settings.
type VirtualMachinePoolOpportunisticUpdateStrategy struct{}

// VirtualMachinePoolProactiveUpdateStrategy restarts guests.
type VirtualMachinePoolProactiveUpdateStrategy struct {
	// SelectionPolicy says which are restarted first.
	// +optional
	SelectionPolicy *VirtualMachinePoolSelectionPolicy `json:"selectionPolicy,omitempty"`
}
