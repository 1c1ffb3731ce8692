package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VirtualMachineInstanceMigration moves a running guest to another node (live migration). It is one
// attempt: it ends Succeeded or Failed. Deleting it before that cancels the attempt, and the guest stays
// where it is.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachineinstancemigrations,shortName=vmim;vmims,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=.status.phase,description="How far the migration is"
// +kubebuilder:printcolumn:name="VMI",type=string,JSONPath=.spec.vmiName,description="The VirtualMachineInstance whose guest moves"
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=.status.migrationState.sourceNode,priority=1
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=.status.migrationState.targetNode,priority=1
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=.status.migrationState.failureReason,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
type VirtualMachineInstanceMigration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineInstanceMigrationSpec `json:"spec"`
	// +optional
	Status VirtualMachineInstanceMigrationStatus `json:"status,omitempty"`
}

// VirtualMachineInstanceMigrationList is a list of VirtualMachineInstanceMigrations.
//
// +kubebuilder:object:root=true
type VirtualMachineInstanceMigrationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineInstanceMigration `json:"items"`
}

// VirtualMachineInstanceMigrationSpec says whose guest moves, and where it may go.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="update of Migration object's spec is restricted"
type VirtualMachineInstanceMigrationSpec struct {
	// VMIName is the name of the VirtualMachineInstance, in the migration's namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	VMIName string `json:"vmiName"`
	// AddedNodeSelector restricts the nodes to which the guest may go, beside what the
	// VirtualMachineInstance itself says. Where both have a key, the VirtualMachineInstance's value holds.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	AddedNodeSelector map[string]string `json:"addedNodeSelector,omitempty"`
	// Priority decides which of several migrations that wait begins first. Default: user-triggered.
	// +optional
	// +kubebuilder:validation:Enum=system-critical;user-triggered;system-maintenance
	Priority *MigrationPriority `json:"priority,omitempty"`
	// SendTo is refused: a guest cannot move to another cluster.
	// +optional
	SendTo *Unsupported `json:"sendTo,omitempty"`
	// Receive is refused: a guest cannot come from another cluster.
	// +optional
	Receive *Unsupported `json:"receive,omitempty"`
}

// MigrationPriority decides which migration begins first.
type MigrationPriority string

// Priorities, the highest first. A migration without a priority is user-triggered.
const (
	PrioritySystemCritical    MigrationPriority = "system-critical"
	PriorityUserTriggered     MigrationPriority = "user-triggered"
	PrioritySystemMaintenance MigrationPriority = "system-maintenance"
)

// VirtualMachineInstanceMigrationPhase is how far a migration is. It never goes back.
type VirtualMachineInstanceMigrationPhase string

// Phases, in order, with KubeVirt's names.
const (
	// MigrationPending: the migration waits for others, or for a quota.
	MigrationPending VirtualMachineInstanceMigrationPhase = "Pending"
	// MigrationScheduling: the target pod exists.
	MigrationScheduling VirtualMachineInstanceMigrationPhase = "Scheduling"
	// MigrationScheduled: the target's launcher runs on its node.
	MigrationScheduled VirtualMachineInstanceMigrationPhase = "Scheduled"
	// MigrationPreparingTarget: the target's virt-handler was told of the migration.
	MigrationPreparingTarget VirtualMachineInstanceMigrationPhase = "PreparingTarget"
	// MigrationTargetReady: the source's virt-handler may connect to the target's.
	MigrationTargetReady VirtualMachineInstanceMigrationPhase = "TargetReady"
	// MigrationRunning: disks and memory are copied.
	MigrationRunning VirtualMachineInstanceMigrationPhase = "Running"
	// MigrationSucceeded: the guest runs on the target.
	MigrationSucceeded VirtualMachineInstanceMigrationPhase = "Succeeded"
	// MigrationFailed: the guest stays on the source, or has ended.
	MigrationFailed VirtualMachineInstanceMigrationPhase = "Failed"
)

// VirtualMachineInstanceMigrationStatus is how far a migration is.
type VirtualMachineInstanceMigrationStatus struct {
	// +optional
	// +kubebuilder:validation:Enum=Pending;Scheduling;Scheduled;PreparingTarget;TargetReady;Running;Succeeded;Failed
	Phase VirtualMachineInstanceMigrationPhase `json:"phase,omitempty"`
	// Conditions of the migration.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []VirtualMachineInstanceMigrationCondition `json:"conditions,omitempty"`
	// PhaseTransitionTimestamps says when each phase was entered.
	// +optional
	// +listType=atomic
	PhaseTransitionTimestamps []VirtualMachineInstanceMigrationPhaseTransitionTimestamp `json:"phaseTransitionTimestamps,omitempty"`
	// MigrationState is a copy of the VirtualMachineInstance's status.migrationState. It stays when another
	// migration of the VirtualMachineInstance begins.
	// +optional
	MigrationState *VirtualMachineInstanceMigrationState `json:"migrationState,omitempty"`
}

// MigrationConditionType names a condition of a migration.
type MigrationConditionType string

// Conditions of a migration, with KubeVirt's names.
const (
	// MigrationAbortRequested: the migration was deleted before its end.
	MigrationAbortRequested MigrationConditionType = "migrationAbortRequested"
	// MigrationRejectedByResourceQuota: a quota leaves no room for the target pod.
	MigrationRejectedByResourceQuota MigrationConditionType = "migrationRejectedByResourceQuota"
	// MigrationPostCopyRefused: the configuration allows post-copy, and the nodes or their components cannot.
	// KubeVirt has no such condition.
	MigrationPostCopyRefused MigrationConditionType = "migrationPostCopyRefused"
	// MigrationTargetWaiting: the kubelet says why a container of the target pod waits, such as for an image that
	// cannot be pulled. KubeVirt has no such condition.
	MigrationTargetWaiting MigrationConditionType = "migrationTargetWaiting"
)

// VirtualMachineInstanceMigrationCondition is one condition of a migration.
type VirtualMachineInstanceMigrationCondition struct {
	Type MigrationConditionType `json:"type"`
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

// VirtualMachineInstanceMigrationPhaseTransitionTimestamp says when a phase was entered.
type VirtualMachineInstanceMigrationPhaseTransitionTimestamp struct {
	Phase VirtualMachineInstanceMigrationPhase `json:"phase,omitempty"`
	// PhaseTransitionTimestamp is when it was entered.
	PhaseTransitionTimestamp metav1.Time `json:"phaseTransitionTimestamp,omitempty"`
}

const (
	// MigrationFinalizer keeps a migration that was deleted until its target pod is gone.
	MigrationFinalizer = "kubevirt.io/migrationJobFinalize"
	// VMINameLabel holds, on a migration, the name of its VirtualMachineInstance: "virtctl migrate-cancel"
	// selects by it.
	VMINameLabel = "kubevirt.io/vmi-name"
	// MigrationJobLabel holds the migration's UID on its target pod.
	MigrationJobLabel = "kubevirt.io/migrationJobUID"
	// EvacuationMigrationAnnotation holds, on a migration that an eviction asked for, the node that the guest is to
	// leave.
	EvacuationMigrationAnnotation = "kubevirt.io/evacuationMigration"
	// WorkloadUpdateMigrationAnnotation holds, on a migration that brings a guest to a launcher of the present image, the
	// launcher pod that the guest is to leave. KubeVirt leaves the value empty.
	WorkloadUpdateMigrationAnnotation = "kubevirt.io/workloadUpdateMigration"
	// VolumeUpdateAnnotation holds, on a migration that copies disks to the claims that users named, a hash of these
	// claims (VirtualMachineInstance.VolumeUpdate).
	VolumeUpdateAnnotation = "kubeqemu.io/volume-update"
	// MigrationJobNameAnnotation holds the migration's name on its target pod.
	MigrationJobNameAnnotation = "kubevirt.io/migrationJobName"
)

// IsFinal reports whether the migration has ended.
func (m *VirtualMachineInstanceMigration) IsFinal() bool {
	return m.Status.Phase == MigrationSucceeded || m.Status.Phase == MigrationFailed
}

// IsUnderway reports whether the migration has begun, and has not ended.
func (m *VirtualMachineInstanceMigration) IsUnderway() bool {
	return !m.IsFinal() && migrationOrder[m.Status.Phase] > migrationOrder[MigrationPending]
}

// EffectivePriority returns the priority, or its default.
func (m *VirtualMachineInstanceMigration) EffectivePriority() MigrationPriority {
	if m.Spec.Priority == nil {
		return PriorityUserTriggered
	}
	return *m.Spec.Priority
}

// UpdatesLauncher reports whether virt-controller made the migration to bring a guest to a launcher of another image.
// The API server lets only virt-controller make migrations of the lowest priority, and lets others write the
// annotation.
func (m *VirtualMachineInstanceMigration) UpdatesLauncher() bool {
	return m.Annotations[WorkloadUpdateMigrationAnnotation] != "" && m.EffectivePriority() == PrioritySystemMaintenance
}

// StaysOnNode reports whether the migration brings the guest to another pod on the guest's own node, because no other
// node takes the guest. virt-controller selects a node only for such an update. All other migrations bring the guest to
// another node.
func (m *VirtualMachineInstanceMigration) StaysOnNode() bool {
	return m.UpdatesLauncher() && m.Spec.AddedNodeSelector[corev1.LabelHostname] != ""
}

// migrationOrder is the order of the phases; a phase never goes back.
var migrationOrder = map[VirtualMachineInstanceMigrationPhase]int{
	"": 0, MigrationPending: 1, MigrationScheduling: 2, MigrationScheduled: 3, MigrationPreparingTarget: 4,
	MigrationTargetReady: 5, MigrationRunning: 6, MigrationSucceeded: 7, MigrationFailed: 7,
}

// SetPhase moves the phase on, and notes the time. It does nothing for a phase that has been passed.
func (s *VirtualMachineInstanceMigrationStatus) SetPhase(p VirtualMachineInstanceMigrationPhase, now metav1.Time) {
	if migrationOrder[p] <= migrationOrder[s.Phase] {
		return
	}
	s.Phase = p
	s.PhaseTransitionTimestamps = append(s.PhaseTransitionTimestamps,
		VirtualMachineInstanceMigrationPhaseTransitionTimestamp{Phase: p, PhaseTransitionTimestamp: now})
}

// Entered returns when a phase was entered; zero if it was not.
func (s *VirtualMachineInstanceMigrationStatus) Entered(p VirtualMachineInstanceMigrationPhase) metav1.Time {
	for _, t := range s.PhaseTransitionTimestamps {
		if t.Phase == p {
			return t.PhaseTransitionTimestamp
		}
	}
	return metav1.Time{}
}

// Condition returns a condition, or nil.
func (s *VirtualMachineInstanceMigrationStatus) Condition(
	t MigrationConditionType) *VirtualMachineInstanceMigrationCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

// SetCondition sets a condition; its transition time changes only with its status.
func (s *VirtualMachineInstanceMigrationStatus) SetCondition(c VirtualMachineInstanceMigrationCondition,
	now metav1.Time) {
	old := s.Condition(c.Type)
	if old == nil {
		c.LastTransitionTime = now
		s.Conditions = append(s.Conditions, c)
		return
	}
	c.LastTransitionTime = old.LastTransitionTime
	if old.Status != c.Status {
		c.LastTransitionTime = now
	}
	*old = c
}

// RemoveCondition removes a condition.
func (s *VirtualMachineInstanceMigrationStatus) RemoveCondition(t MigrationConditionType) {
	var kept []VirtualMachineInstanceMigrationCondition
	for _, c := range s.Conditions {
		if c.Type != t {
			kept = append(kept, c)
		}
	}
	s.Conditions = kept
}
