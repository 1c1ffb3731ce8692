package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// RevisionLabel of a pool's VirtualMachines, and of their guests, tells the
// template that they were made from. The name is KubeVirt's.
const RevisionLabel = "kubevirt.io/vm-pool-revision-name"

// VirtualMachinePool keeps a number of VirtualMachines of one template. They
// are called <pool>-0, <pool>-1 and so on; one that is deleted comes back under
// its name. kubectl scale and HorizontalPodAutoscalers change their number.
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
	// +optional
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

// VirtualMachinePoolSpec says how many VirtualMachines of what there are to be.
type VirtualMachinePoolSpec struct {
	// Replicas is how many VirtualMachines there are to be, running or not. One
	// that is being deleted counts until it is gone. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`
	// Selector must match the labels of virtualMachineTemplate. Autoscalers find
	// by it whose load counts: give the labels to the guests (template.metadata
	// of the VirtualMachine) too. What belongs to the pool does not follow from
	// it, but from owner references: nothing is taken over, and a VirtualMachine
	// whose owner reference is removed has left the pool.
	Selector *metav1.LabelSelector `json:"selector"`
	// VirtualMachineTemplate is what the VirtualMachines are made from. What
	// becomes of those that are there when it changes, updateStrategy says.
	VirtualMachineTemplate VirtualMachineTemplateSpec `json:"virtualMachineTemplate"`
	// Paused: VirtualMachines are neither made, changed nor deleted; those that
	// are there run on. The condition ReplicaPaused says that it was noticed.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// NameGeneration has the index of a VirtualMachine appended to names that
	// its template refers to.
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
	// UpdateStrategy says what becomes of VirtualMachines when their template
	// changes. Default: proactive, which restarts guests.
	// +optional
	UpdateStrategy *VirtualMachinePoolUpdateStrategy `json:"updateStrategy,omitempty"`

	// Autohealing is refused: not supported yet. A guest that ends is started
	// again as its run strategy says.
	// +optional
	Autohealing *v1.Unsupported `json:"autohealing,omitempty"`
}

// VirtualMachineTemplateSpec is what VirtualMachines are made from.
type VirtualMachineTemplateSpec struct {
	// ObjectMeta: labels and annotations are given to every VirtualMachine; the
	// rest is without effect.
	// +optional
	// +nullable
	ObjectMeta v1.TemplateMeta `json:"metadata,omitempty"`
	// Spec of every VirtualMachine. A persistentVolumeClaim that it names is the
	// same for all of them.
	Spec v1.VirtualMachineSpec `json:"spec"`
}

// VirtualMachinePoolNameGeneration has indices appended to names.
type VirtualMachinePoolNameGeneration struct {
	// AppendIndexToConfigMapRefs is refused: not supported yet, as are volumes
	// of ConfigMaps.
	// +optional
	AppendIndexToConfigMapRefs v1.UnsupportedBool `json:"appendIndexToConfigMapRefs,omitempty"`
	// AppendIndexToSecretRefs: where the template names the Secret x for
	// cloud-init, the VirtualMachine <pool>-3 gets its data from x-3. Secrets
	// with credentials of registries keep their names. Default: false.
	// +optional
	AppendIndexToSecretRefs *bool `json:"appendIndexToSecretRefs,omitempty"`
}

// VirtualMachinePoolScaleInStrategy says which VirtualMachines are deleted when
// there are too many. PersistentVolumeClaims are left alone by all of them.
//
// +kubebuilder:validation:XValidation:rule="[has(self.unmanaged), has(self.opportunistic), has(self.proactive)].filter(s, s).size() <= 1",message="only one strategy may be set"
type VirtualMachinePoolScaleInStrategy struct {
	// Unmanaged: none; whoever lowers replicas deletes VirtualMachines too.
	// +optional
	Unmanaged *VirtualMachinePoolUnmanagedStrategy `json:"unmanaged,omitempty"`
	// Opportunistic: none; those that are deleted by others do not come back.
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

// VirtualMachinePoolUpdateStrategy says what becomes of VirtualMachines when
// their template changes. What somebody else changed in one's spec is
// overwritten only when the pool's template changes.
//
// +kubebuilder:validation:XValidation:rule="[has(self.unmanaged), has(self.opportunistic), has(self.proactive)].filter(s, s).size() <= 1",message="only one strategy may be set"
type VirtualMachinePoolUpdateStrategy struct {
	// Unmanaged: the change holds for those that are made afterwards.
	// +optional
	Unmanaged *VirtualMachinePoolUnmanagedStrategy `json:"unmanaged,omitempty"`
	// Opportunistic: every VirtualMachine gets the new spec; guests that run get
	// it with their next start.
	// +optional
	Opportunistic *VirtualMachinePoolOpportunisticUpdateStrategy `json:"opportunistic,omitempty"`
	// Proactive: every VirtualMachine gets the new spec, and guests whose own
	// spec it changes are restarted, no more at a time than maxUnavailable
	// allows. Not those of run strategy Once.
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
