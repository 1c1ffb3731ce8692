package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// MigrationPolicy bounds the live migrations of the guests that it selects. The KubeVirt object's
// configuration.migrations has the limits that a policy leaves out.
//
// If several policies select a guest, the policy with the most labels in its selectors holds, and of two with as many,
// the policy with more labels of the guest. Then the first name holds. The order is KubeVirt's.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=migrationpolicies,scope=Cluster,categories=all
// +kubebuilder:metadata:labels="kubevirt.io="
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Bandwidth",type=string,JSONPath=.spec.bandwidthPerMigration,description="Most bytes that a migration sends in a second"
// +kubebuilder:printcolumn:name="Completion",type=integer,JSONPath=.spec.completionTimeoutPerGiB,description="How many seconds a migration may take for each GiB"
// +kubebuilder:printcolumn:name="Downtime",type=integer,JSONPath=.spec.maxDowntimeMs,description="How many milliseconds the guest may stand still"
// +kubebuilder:printcolumn:name="AutoConverge",type=boolean,JSONPath=.spec.allowAutoConverge,description="Whether QEMU may slow the guest down"
// +kubebuilder:printcolumn:name="ClaimCopy",type=boolean,JSONPath=.spec.allowClaimCopy,description="Whether disks of claims that one node can use are copied"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
type MigrationPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec MigrationPolicySpec `json:"spec"`
	// Status is empty, as in KubeVirt.
	// +optional
	// +nullable
	Status MigrationPolicyStatus `json:"status,omitempty"`
}

// MigrationPolicyList is a list of MigrationPolicies.
//
// +kubebuilder:object:root=true
type MigrationPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MigrationPolicy `json:"items"`
}

// MigrationPolicySpec selects guests, and bounds their migrations.
type MigrationPolicySpec struct {
	// Selectors select guests. Without selectors the policy selects no guest.
	// +optional
	Selectors *Selectors `json:"selectors,omitempty"`
	// BandwidthPerMigration bounds what a migration sends in a second. 0 is no bound.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : !self.startsWith('-')",message="a bandwidth is 0 or more"
	BandwidthPerMigration *resource.Quantity `json:"bandwidthPerMigration,omitempty"`
	// CompletionTimeoutPerGiB is how long a migration may take for each GiB of the guest's memory and of
	// disks that are copied. Unit: seconds. More than 86400, a day, counts as a day.
	// +optional
	// +kubebuilder:validation:Minimum=1
	CompletionTimeoutPerGiB *int64 `json:"completionTimeoutPerGiB,omitempty"`
	// MaxDowntimeMs is how long the guest's CPUs may stand still while the last bytes are copied. Unit:
	// milliseconds.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60000
	MaxDowntimeMs *uint64 `json:"maxDowntimeMs,omitempty"`
	// AllowAutoConverge lets QEMU slow the guest down if the guest changes memory faster than it is copied.
	// +optional
	AllowAutoConverge *bool `json:"allowAutoConverge,omitempty"`
	// AllowPostCopy lets a guest go on at the target before its memory is there, where the copying of memory would end
	// without success, because it takes too long. If a node or the connection between the nodes fails from then on, the
	// guest is lost.
	// +optional
	AllowPostCopy *bool `json:"allowPostCopy,omitempty"`
	// AllowWorkloadDisruption: false forbids post-copy. Default: what allowPostCopy says.
	// +optional
	AllowWorkloadDisruption *bool `json:"allowWorkloadDisruption,omitempty"`
	// AllowClaimCopy lets a migration copy a disk of the VirtualMachine's dataVolumeTemplates whose claim only one
	// node can use. The migration makes a claim of the same class and size for the target, and the old claim is deleted
	// once the guest runs there. Default: false. KubeVirt has no such field.
	// +optional
	AllowClaimCopy *bool `json:"allowClaimCopy,omitempty"`

	UnusedMigrationPolicySpec `json:",inline"`
}

// CopiesClaims says whether a migration may copy the disks of claims. p may be nil.
func (p *MigrationPolicy) CopiesClaims() bool {
	return p != nil && ptr.Deref(p.Spec.AllowClaimCopy, false)
}

// UnusedMigrationPolicySpec holds what nothing reads yet. The API server warns of each field that is set.
type UnusedMigrationPolicySpec struct {
	// Experimental has no effect.
	// +optional
	Experimental *v1.Kept `json:"experimental,omitempty"`
}

// Selectors select the guests whose VirtualMachineInstances have all of the labels, in namespaces that have all
// of the labels. Empty selectors select all guests.
type Selectors struct {
	// NamespaceSelector has labels of namespaces.
	// +optional
	NamespaceSelector map[string]string `json:"namespaceSelector,omitempty"`
	// VirtualMachineInstanceSelector has labels of VirtualMachineInstances.
	// +optional
	VirtualMachineInstanceSelector map[string]string `json:"virtualMachineInstanceSelector,omitempty"`
}

// MigrationPolicyStatus is empty.
type MigrationPolicyStatus struct{}
