package v1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachine holds the template of a guest and a run strategy. Each start makes a
// VirtualMachineInstance of its name from the template. The guest finds the same UUID, serial
// number, MAC addresses and machine as before.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachines,shortName=vm;vms,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp,description="Age"
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=.status.printableStatus,description="Human readable status"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=.status.conditions[?(@.type=='Ready')].status,description="Whether the guest runs"
// +kubebuilder:printcolumn:name="Node",type=string,priority=1,JSONPath=.status.guest.nodeName
// +kubebuilder:printcolumn:name="IP",type=string,priority=1,JSONPath=.status.guest.ip
// +kubebuilder:printcolumn:name="Run Strategy",type=string,priority=1,JSONPath=.spec.runStrategy,description="When the guest runs"
// +kubebuilder:printcolumn:name="Restart Required",type=string,priority=1,JSONPath=.status.conditions[?(@.type=='RestartRequired')].status,description="Whether the running guest is not as the template says"
type VirtualMachine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineSpec `json:"spec"`
	// Status may have fields of KubeVirt's that are not here: an object that was read from KubeVirt is applied as it is. They are not kept.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status VirtualMachineStatus `json:"status,omitempty"`
}

// VirtualMachineList is a list of VirtualMachines.
//
// +kubebuilder:object:root=true
type VirtualMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachine `json:"items"`
}

// VirtualMachineSpec says what the guest is, and when it runs. Nothing is ever defaulted into
// it: it stays as it was applied, but for the names that inferFromVolume leads to.
//
// +kubebuilder:validation:XValidation:rule="has(self.running) || has(self.runStrategy)",message="one of running and runStrategy must be set"
// +kubebuilder:validation:XValidation:rule="!(has(self.running) && has(self.runStrategy))",message="running and runStrategy exclude each other; running is deprecated, use runStrategy"
// +kubebuilder:validation:XValidation:rule="has(self.preference) || !has(self.template.spec.domain.devices) || !has(self.template.spec.domain.devices.interfaces) || self.template.spec.domain.devices.interfaces.all(i, has(i.masquerade) || has(i.bridge) || has(i.sriov) || has(i.passtBinding) || has(i.binding) || has(i.slirp) || has(i.macvtap) || has(i.passt))",message="exactly one binding must be set (supported: bridge, masquerade, sriov, passtBinding, binding)",fieldPath=".template.spec.domain.devices.interfaces"
type VirtualMachineSpec struct {
	// Running is deprecated: use runStrategy. true means Always, false Halted.
	// +optional
	Running *bool `json:"running,omitempty"`

	// RunStrategy says when the guest runs. Set either running or runStrategy.
	// Always: it is started again whenever it ends.
	// RerunOnFailure: it is started again when it fails, not when it powers off.
	// Once: it is started once, and not again when it has ended.
	// Manual: only requests (status.stateChangeRequests; virtctl start and stop)
	// start and stop it.
	// Halted: it does not run.
	// WaitAsReceiver is refused: not supported yet.
	// +optional
	// +kubebuilder:validation:Enum=Always;Halted;Manual;RerunOnFailure;Once;WaitAsReceiver
	// +kubebuilder:validation:XValidation:rule="self != 'WaitAsReceiver'",message="not supported yet"
	RunStrategy *VirtualMachineRunStrategy `json:"runStrategy,omitempty"`

	// Template of the VirtualMachineInstances. A change of its spec holds from the next start
	// on; until then the condition RestartRequired is True. A running guest that can migrate
	// follows nodeSelector, affinity and tolerations, unless the KubeVirt object's
	// configuration.vmRolloutStrategy is Stage: its next migration heeds them.
	Template VirtualMachineInstanceTemplateSpec `json:"template"`

	// Instancetype is the machine's size. The template must not set the same fields. The machine
	// keeps it as it was when the machine named it: later changes have no effect.
	// +optional
	Instancetype *InstancetypeMatcher `json:"instancetype,omitempty"`
	// Preference fills in what the template leaves out, as it was when the machine named it.
	// +optional
	Preference *PreferenceMatcher `json:"preference,omitempty"`
	// DataVolumeTemplates are DataVolumes that virt-controller makes, if they are not there, before
	// the guest is started. CDI fills them, or Kubeqemu itself (config/datavolumes).
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	DataVolumeTemplates []DataVolumeTemplate `json:"dataVolumeTemplates,omitempty"`

	// UpdateVolumesStrategy is for volumes that the template puts on other claims while the guest
	// runs. Replacement: they hold from the next start on. Migration: the guest is moved to another
	// node, and its disks are copied to the new claims; until that is done, the machine does not start
	// anew. Default: Replacement.
	// +optional
	// +kubebuilder:validation:Enum=Migration;Replacement
	UpdateVolumesStrategy *UpdateVolumesStrategy `json:"updateVolumesStrategy,omitempty"`
}

// InstancetypeMatcher names an instancetype.
//
// +kubebuilder:validation:XValidation:rule="has(self.name) != has(self.inferFromVolume)",message="either name or inferFromVolume must be set"
// +kubebuilder:validation:XValidation:rule="!(has(self.revisionName) && has(self.inferFromVolume))",message="revisionName and inferFromVolume exclude each other"
type InstancetypeMatcher struct {
	// Name of the instancetype.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// Kind is VirtualMachineInstancetype or VirtualMachineClusterInstancetype, in
	// any case. Default: the latter.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^(?i)virtualmachine(cluster)?instancetypes?$`
	Kind string `json:"kind,omitempty"`
	// RevisionName is a ControllerRevision with the instancetype to use. Default: the one made
	// when the machine named the instancetype.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	RevisionName string `json:"revisionName,omitempty"`
	// InferFromVolume is the volume whose claim's labels name the instancetype:
	// instancetype.kubevirt.io/default-instancetype and …-kind. When the machine is created, their
	// values become name and kind.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	InferFromVolume string `json:"inferFromVolume,omitempty"`
	// InferFromVolumeFailurePolicy is for a claim without these labels: Reject refuses the machine,
	// Ignore makes it without. Default: Reject.
	// +optional
	// +kubebuilder:validation:Enum=Reject;Ignore
	InferFromVolumeFailurePolicy *InferFromVolumeFailurePolicy `json:"inferFromVolumeFailurePolicy,omitempty"`
}

// PreferenceMatcher names a preference.
//
// +kubebuilder:validation:XValidation:rule="has(self.name) != has(self.inferFromVolume)",message="either name or inferFromVolume must be set"
// +kubebuilder:validation:XValidation:rule="!(has(self.revisionName) && has(self.inferFromVolume))",message="revisionName and inferFromVolume exclude each other"
type PreferenceMatcher struct {
	// Name of the preference.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// Kind is VirtualMachinePreference or VirtualMachineClusterPreference, in
	// any case. Default: the latter.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^(?i)virtualmachine(cluster)?preferences?$`
	Kind string `json:"kind,omitempty"`
	// RevisionName is a ControllerRevision with the preference to use. Default: the one made when
	// the machine named the preference.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	RevisionName string `json:"revisionName,omitempty"`
	// InferFromVolume is the volume whose claim's labels name the preference:
	// instancetype.kubevirt.io/default-preference and …-kind. When the machine is created, their
	// values become name and kind.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	InferFromVolume string `json:"inferFromVolume,omitempty"`
	// InferFromVolumeFailurePolicy is for a claim without these labels: Reject refuses the machine,
	// Ignore makes it without. Default: Reject.
	// +optional
	// +kubebuilder:validation:Enum=Reject;Ignore
	InferFromVolumeFailurePolicy *InferFromVolumeFailurePolicy `json:"inferFromVolumeFailurePolicy,omitempty"`
}

// InferFromVolumeFailurePolicy is Reject or Ignore.
type InferFromVolumeFailurePolicy string

// Policies for volumes that name nothing.
const (
	RejectInferFromVolumeFailure InferFromVolumeFailurePolicy = "Reject"
	IgnoreInferFromVolumeFailure InferFromVolumeFailurePolicy = "Ignore"
)

// InstancetypeStatusRef is the instancetype or preference of a machine.
type InstancetypeStatusRef struct {
	// Name of the instancetype or preference.
	// +optional
	Name string `json:"name,omitempty"`
	// Kind of the instancetype or preference.
	// +optional
	Kind string `json:"kind,omitempty"`
	// ControllerRevisionRef names the ControllerRevision that holds it as it was when the
	// machine named it.
	// +optional
	ControllerRevisionRef *ControllerRevisionRef `json:"controllerRevisionRef,omitempty"`
	// InferFromVolume is the volume that named it.
	// +optional
	InferFromVolume string `json:"inferFromVolume,omitempty"`
	// InferFromVolumeFailurePolicy is the matcher's.
	// +optional
	InferFromVolumeFailurePolicy *InferFromVolumeFailurePolicy `json:"inferFromVolumeFailurePolicy,omitempty"`
}

// ControllerRevisionRef names a ControllerRevision of the same namespace.
type ControllerRevisionRef struct {
	// Name of the ControllerRevision.
	Name string `json:"name,omitempty"`
}

// UpdateVolumesStrategy is Replacement or Migration.
type UpdateVolumesStrategy string

// Values of UpdateVolumesStrategy.
const (
	// UpdateVolumesStrategyReplacement: changed volumes wait for the next start.
	UpdateVolumesStrategyReplacement UpdateVolumesStrategy = "Replacement"
	// UpdateVolumesStrategyMigration: a migration copies the disks to the new claims.
	UpdateVolumesStrategyMigration UpdateVolumesStrategy = "Migration"
)

// VirtualMachineRunStrategy says when a guest runs.
type VirtualMachineRunStrategy string

// Run strategies.
const (
	RunStrategyAlways         VirtualMachineRunStrategy = "Always"
	RunStrategyHalted         VirtualMachineRunStrategy = "Halted"
	RunStrategyManual         VirtualMachineRunStrategy = "Manual"
	RunStrategyRerunOnFailure VirtualMachineRunStrategy = "RerunOnFailure"
	RunStrategyOnce           VirtualMachineRunStrategy = "Once"
)

// VirtualMachineStatus is the machine's state.
type VirtualMachineStatus struct {
	// Created: the VirtualMachineInstance exists.
	// +optional
	Created bool `json:"created,omitempty"`
	// Ready: the guest runs.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// Guest is where the guest runs.
	// +optional
	Guest *GuestPlace `json:"guest,omitempty"`
	// PrintableStatus is where the machine is, in one word: Stopped, Starting,
	// Running, Migrating, Paused, Stopping, Terminating, CrashLoopBackOff, or what keeps it
	// from starting.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	PrintableStatus VirtualMachinePrintableStatus `json:"printableStatus,omitempty"`
	// Conditions are the VirtualMachineInstance's, and Failure, RestartRequired, VolumesChange and
	// ManualRecoveryRequired.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []VirtualMachineInstanceCondition `json:"conditions,omitempty"`
	// StateChangeRequests are carried out once each, in this order, and then removed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	StateChangeRequests []VirtualMachineStateChangeRequest `json:"stateChangeRequests,omitempty"`
	// StartFailure is set while the guest fails before it runs, over and over.
	// +optional
	// +nullable
	StartFailure *VirtualMachineStartFailure `json:"startFailure,omitempty"`
	// ObservedGeneration is the generation of the spec in force: older than metadata.generation
	// while a restart is required.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// DesiredGeneration is the generation of the spec that was seen last.
	// +optional
	DesiredGeneration int64 `json:"desiredGeneration,omitempty"`
	// RunStrategy is the strategy that was carried out last. RerunOnFailure starts the guest by
	// itself only after another strategy. When the strategy becomes Halted, earlier requests
	// are dropped.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RunStrategy VirtualMachineRunStrategy `json:"runStrategy,omitempty"`
	// InstancetypeRef is the instancetype that the machine has.
	// +optional
	// +nullable
	InstancetypeRef *InstancetypeStatusRef `json:"instancetypeRef,omitempty"`
	// PreferenceRef is the preference that the machine has.
	// +optional
	// +nullable
	PreferenceRef *InstancetypeStatusRef `json:"preferenceRef,omitempty"`
	// MovedClaims are the claims of the template whose disks are on other claims, because a migration copied them. The
	// machine starts with the claims that have the disks. KubeVirt has no such field.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	MovedClaims []MovedClaim `json:"movedClaims,omitempty"`
	// VolumeUpdateState is about volumes that the template puts on other claims than the guest has.
	// +optional
	// +nullable
	VolumeUpdateState *VolumeUpdateState `json:"volumeUpdateState,omitempty"`
}

// VirtualMachinePrintableStatus is where a machine is, in one word.
type VirtualMachinePrintableStatus string

// Values of printableStatus, KubeVirt's words. If several apply, the first counts.
const (
	VirtualMachineStatusTerminating             VirtualMachinePrintableStatus = "Terminating"
	VirtualMachineStatusStopping                VirtualMachinePrintableStatus = "Stopping"
	VirtualMachineStatusMigrating               VirtualMachinePrintableStatus = "Migrating"
	VirtualMachineStatusPaused                  VirtualMachinePrintableStatus = "Paused"
	VirtualMachineStatusRunning                 VirtualMachinePrintableStatus = "Running"
	VirtualMachineStatusPvcNotFound             VirtualMachinePrintableStatus = "ErrorPvcNotFound"
	VirtualMachineStatusDataVolumeError         VirtualMachinePrintableStatus = "DataVolumeError"
	VirtualMachineStatusUnschedulable           VirtualMachinePrintableStatus = "ErrorUnschedulable"
	VirtualMachineStatusProvisioning            VirtualMachinePrintableStatus = "Provisioning"
	VirtualMachineStatusWaitingForVolumeBinding VirtualMachinePrintableStatus = "WaitingForVolumeBinding"
	VirtualMachineStatusErrImagePull            VirtualMachinePrintableStatus = "ErrImagePull"
	VirtualMachineStatusImagePullBackOff        VirtualMachinePrintableStatus = "ImagePullBackOff"
	VirtualMachineStatusStarting                VirtualMachinePrintableStatus = "Starting"
	VirtualMachineStatusCrashLoopBackOff        VirtualMachinePrintableStatus = "CrashLoopBackOff"
	VirtualMachineStatusStopped                 VirtualMachinePrintableStatus = "Stopped"
	VirtualMachineStatusUnknown                 VirtualMachinePrintableStatus = "Unknown"
)

// StateChangeRequestAction is Start or Stop.
type StateChangeRequestAction string

// Actions of requests.
const (
	StartRequest StateChangeRequestAction = "Start"
	StopRequest  StateChangeRequestAction = "Stop"
)

// StartRequestDataPausedKey of a Start request's data, set to StartRequestDataPausedTrue, keeps
// the guest's CPUs stopped until it is unpaused.
const (
	StartRequestDataPausedKey  = "paused"
	StartRequestDataPausedTrue = "true"
)

// VirtualMachineStateChangeRequest is a request that a machine carries out once.
type VirtualMachineStateChangeRequest struct {
	// Action is Start or Stop. A Stop and then a Start are a restart.
	// +kubebuilder:validation:Enum=Start;Stop
	Action StateChangeRequestAction `json:"action"`
	// Data of a Start: with "paused": "true" the guest's CPUs do not run before it is unpaused.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Data map[string]string `json:"data,omitempty"`
	// UID of the VirtualMachineInstance to stop. Needed with Stop, so that it stops no later
	// one.
	// +optional
	UID *types.UID `json:"uid,omitempty"`
}

// GuestPlace is where a guest runs. KubeVirt has no such field: a VirtualMachine's columns show it.
type GuestPlace struct {
	// NodeName is the guest's node.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
	// IP is the first address of the guest's first interface.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	IP string `json:"ip,omitempty"`
}

// VirtualMachineStartFailure says how often the guest failed before it ran.
type VirtualMachineStartFailure struct {
	// ConsecutiveFailCount counts the failures since the guest ran last.
	// +optional
	ConsecutiveFailCount int `json:"consecutiveFailCount,omitempty"`
	// LastFailedVMIUID is the VirtualMachineInstance that was counted last.
	// +optional
	LastFailedVMIUID types.UID `json:"lastFailedVMIUID,omitempty"`
	// RetryAfterTimestamp is when the guest is started again: after the failure, 10 s times the
	// square of the count, plus up to half of that, but at most 300 s.
	// +optional
	RetryAfterTimestamp *metav1.Time `json:"retryAfterTimestamp,omitempty"`
}

// Names that others rely on are KubeVirt's.
const (
	// VMFinalizer keeps a VirtualMachine until its VirtualMachineInstance is gone.
	VMFinalizer = "kubevirt.io/virtualMachineControllerFinalize"
	// VMGenerationAnnotation of a VirtualMachineInstance is the generation of
	// the VirtualMachine that it was made from.
	VMGenerationAnnotation = "kubevirt.io/vm-generation"
	// PoolRevisionLabel of a VirtualMachine, and of its template, names the revision of the pool's template that they have.
	PoolRevisionLabel = "kubevirt.io/vm-pool-revision-name"
	// MachineTypeAnnotation is for a VirtualMachine whose template names no machine type. It
	// holds the type of the first start, which every later start gets.
	MachineTypeAnnotation = "kubeqemu.io/machine-type"
)

// Strategy returns the run strategy, from runStrategy or from running.
func (vm *VirtualMachine) Strategy() VirtualMachineRunStrategy {
	switch {
	case vm.Spec.RunStrategy != nil:
		return *vm.Spec.RunStrategy
	case vm.Spec.Running != nil && *vm.Spec.Running:
		return RunStrategyAlways
	}
	return RunStrategyHalted
}

// PendingRequests returns the requests without the leading ones that are done, given
// the machine's VMI or nil. A Stop is done when the VMI that it is meant for is
// gone, a Start when there is a VMI that has not ended and is not being deleted.
func (s *VirtualMachineStatus) PendingRequests(vmi *VirtualMachineInstance) []VirtualMachineStateChangeRequest {
	done := func(r VirtualMachineStateChangeRequest) bool {
		switch r.Action {
		case StopRequest:
			return vmi == nil || r.UID == nil || *r.UID != vmi.UID
		case StartRequest:
			return vmi != nil && vmi.DeletionTimestamp == nil && !vmi.IsFinal()
		}
		return true
	}
	requests := s.StateChangeRequests
	for len(requests) > 0 && done(requests[0]) {
		requests = requests[1:]
	}
	return slices.Clone(requests)
}
