package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachineInstanceMigrationState is the state of a VirtualMachineInstance's last migration.
//
// Three programs write it. The source's virt-handler writes sourceState, the target's virt-handler writes
// targetState, and virt-controller writes the rest. Decision alone has several writers.
type VirtualMachineInstanceMigrationState struct {
	// MigrationUID is the UID of the VirtualMachineInstanceMigration.
	MigrationUID types.UID `json:"migrationUid,omitempty"`
	// MigrationName is its name. KubeVirt has no such field.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	MigrationName string `json:"migrationName,omitempty"`
	// SourceNode is where the guest runs as the migration begins.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SourceNode string `json:"sourceNode,omitempty"`
	// SourcePod is the launcher pod that the guest leaves.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SourcePod string `json:"sourcePod,omitempty"`
	// TargetNode is where the guest is to go. It is known once the target pod is scheduled.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TargetNode string `json:"targetNode,omitempty"`
	// TargetPod is the launcher pod that the guest is to go to.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TargetPod string `json:"targetPod,omitempty"`
	// SourcePersistentStatePVCName is the claim with the guest's state as the migration begins, if a claim has it.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SourcePersistentStatePVCName string `json:"sourcePersistentStatePVCName,omitempty"`
	// TargetPersistentStatePVCName is the claim that has the state once the guest has moved: the same one if several nodes can use it, else one that the
	// migration makes.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TargetPersistentStatePVCName string `json:"targetPersistentStatePVCName,omitempty"`
	// TargetNodeAddress is the address of the target's virt-handler.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TargetNodeAddress string `json:"targetNodeAddress,omitempty"`
	// TargetNodeDomainDetected: the target's QEMU was started.
	// +optional
	TargetNodeDomainDetected bool `json:"targetNodeDomainDetected,omitempty"`
	// TargetNodeDomainReadyTimestamp is when the guest ran on the target, and all of its memory was there.
	// +optional
	TargetNodeDomainReadyTimestamp *metav1.Time `json:"targetNodeDomainReadyTimestamp,omitempty"`
	// StartTimestamp is when the source began to copy.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// EndTimestamp is when the migration had ended.
	// +optional
	EndTimestamp *metav1.Time `json:"endTimestamp,omitempty"`
	// Mode is PreCopy: the guest's memory is copied before the guest runs on the target. PostCopy: the guest goes on
	// there before that, or is about to. Then the migration can no longer be cancelled.
	// +optional
	// +kubebuilder:validation:Enum=PreCopy;PostCopy
	Mode MigrationMode `json:"mode,omitempty"`
	// Decision says where the guest is to run. While it is empty, the guest runs on the source, or is
	// stopped for the last bytes. The target's virt-handler writes Target once it has all of the guest and
	// before the guest runs there. The source's virt-handler, or virt-controller, writes Source to end a
	// migration. Each write carries the version that it was computed from, so that only one of them succeeds.
	// KubeVirt has no such field.
	// +optional
	// +kubebuilder:validation:Enum=Source;Target
	Decision MigrationDecision `json:"decision,omitempty"`
	// SourceState is what the source's virt-handler reports.
	// +optional
	SourceState *MigrationSourceState `json:"sourceState,omitempty"`
	// TargetState is what the target's virt-handler reports.
	// +optional
	TargetState *MigrationTargetState `json:"targetState,omitempty"`
	// Completed: the migration has ended. KubeVirt sets it for a migration that failed, too.
	// +optional
	Completed bool `json:"completed,omitempty"`
	// Failed: the guest did not move.
	// +optional
	Failed bool `json:"failed,omitempty"`
	// FailureReason says why the guest did not move.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	FailureReason string `json:"failureReason,omitempty"`
	// AbortRequested: the migration was deleted before its end.
	// +optional
	AbortRequested bool `json:"abortRequested,omitempty"`
	// AbortStatus is Aborting after AbortRequested, then Succeeded, or Failed if the guest has moved all the
	// same.
	// +optional
	// +kubebuilder:validation:Enum=Aborting;Succeeded;Failed
	AbortStatus MigrationAbortStatus `json:"abortStatus,omitempty"`
	// MigrationPolicyName is the MigrationPolicy that held for the guest when the migration began.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	MigrationPolicyName string `json:"migrationPolicyName,omitempty"`
	// MigrationConfiguration bounds the migration. It includes the limits of the MigrationPolicy.
	// +optional
	MigrationConfiguration *MigrationConfiguration `json:"migrationConfiguration,omitempty"`
}

// MigrationMode is how a guest's memory gets to the target.
type MigrationMode string

// Modes.
const (
	// MigrationPreCopy: memory is copied while the guest runs on the source.
	MigrationPreCopy MigrationMode = "PreCopy"
	// MigrationPostCopy: the rest of the memory follows while the guest runs on the target.
	MigrationPostCopy MigrationMode = "PostCopy"
)

// MigrationDecision says where a guest that migrates is to run.
type MigrationDecision string

// Decisions.
const (
	DecisionSource MigrationDecision = "Source"
	DecisionTarget MigrationDecision = "Target"
)

// MigrationAbortStatus is how far the cancellation of a migration is.
type MigrationAbortStatus string

// Stages of a cancellation, with KubeVirt's names.
const (
	MigrationAborting       MigrationAbortStatus = "Aborting"
	MigrationAbortSucceeded MigrationAbortStatus = "Succeeded"
	MigrationAbortFailed    MigrationAbortStatus = "Failed"
)

// MigrationSourceState is what the source's virt-handler reports of a migration.
type MigrationSourceState struct {
	// StartTimestamp is when the copying began.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// Progress is written every few seconds, and at the end.
	// +optional
	Progress *MigrationProgress `json:"progress,omitempty"`
	// PostCopyTimestamp is when the source's virt-handler had the guest go on by post-copy. From then on nobody
	// cancels the migration.
	// +optional
	PostCopyTimestamp *metav1.Time `json:"postCopyTimestamp,omitempty"`
	// PostCopyRefused says why the guest cannot go on by post-copy, although the configuration allows that.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	PostCopyRefused string `json:"postCopyRefused,omitempty"`
	// Failure says why the guest did not move.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Failure string `json:"failure,omitempty"`
}

// MigrationProgress is how far the copying is. The launcher measures it, in the tenant's pod.
type MigrationProgress struct {
	// TransferredBytes is how much was sent: of the copied disks, and then of the memory.
	// +optional
	TransferredBytes int64 `json:"transferredBytes,omitempty"`
	// RemainingBytes is how much is still to be sent of what is copied now.
	// +optional
	RemainingBytes int64 `json:"remainingBytes,omitempty"`
	// TotalBytes is the size of what is copied now.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// DirtyBytesPerSecond is how much memory the guest changes in a second.
	// +optional
	DirtyBytesPerSecond int64 `json:"dirtyBytesPerSecond,omitempty"`
	// Milliseconds is the time since the copying began.
	// +optional
	Milliseconds int64 `json:"milliseconds,omitempty"`
	// DowntimeMilliseconds is how long the guest's CPUs stood still, as QEMU measured it on the source. It is
	// known at the end.
	// +optional
	DowntimeMilliseconds int64 `json:"downtimeMilliseconds,omitempty"`
}

// MigrationTargetState is what the target's virt-handler reports of a migration.
type MigrationTargetState struct {
	// NodeAddress is the address of the target's virt-handler: the source may connect to it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	NodeAddress string `json:"nodeAddress,omitempty"`
	// DomainDetected: QEMU was started, and waits for the guest.
	// +optional
	DomainDetected bool `json:"domainDetected,omitempty"`
	// DomainReadyTimestamp is when the guest ran here, and all of its memory was here.
	// +optional
	DomainReadyTimestamp *metav1.Time `json:"domainReadyTimestamp,omitempty"`
	// Failure says why the guest cannot run here.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Failure string `json:"failure,omitempty"`
}

// PostCopy reports whether the guest goes on by post-copy. Then it cannot run on its source again. A source's node has
// no say in that where the configuration, which virt-controller writes, does not allow post-copy.
func (s *VirtualMachineInstanceMigrationState) PostCopy() bool {
	return s.MigrationConfiguration.PostCopy() && s.SourceState != nil && s.SourceState.PostCopyTimestamp != nil
}

// Sends reports whether the virt-handler of the source has begun to send the guest. Nobody else can write that.
func (s *VirtualMachineInstanceMigrationState) Sends() bool {
	return s.SourceState != nil && s.SourceState.StartTimestamp != nil
}

// Ended reports whether the migration has ended.
func (s *VirtualMachineInstanceMigrationState) Ended() bool { return s.Completed || s.Failed }

// Migration returns the VMI's migration that is under way, or nil.
func (vmi *VirtualMachineInstance) Migration() *VirtualMachineInstanceMigrationState {
	if s := vmi.Status.MigrationState; s != nil && !s.Ended() {
		return s
	}
	return nil
}

// Settle takes over where the guest is to run, once that is decided. Before the decision the guest is where it was.
func (s *VirtualMachineInstanceStatus) Settle() {
	switch m := s.MigrationState; {
	case m == nil || s.Phase == Succeeded || s.Phase == Failed:
	case m.Decision == DecisionTarget:
		s.LauncherPod, s.NodeName = m.TargetPod, m.TargetNode
		s.TakeDestinations()
	case m.Decision == DecisionSource && s.LauncherPod == m.TargetPod:
		// The target was to run the guest, and its QEMU did not let the guest run.
		s.LauncherPod, s.NodeName = m.SourcePod, m.SourceNode
		s.hold(sourceClaim)
	}
}
