package v1

// This file has the reasons of conditions and of the phase Failed, because one program writes
// them and others read them. The launcher says how a guest ended: its reasons are in
// launcher/control. For a pod that waits, the kubelet's own reasons are taken over.

// Reasons that several kinds have.
const (
	// ReasonInvalidSpec: validation refuses the spec.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonFailedCreate, ReasonFailedUpdate, ReasonFailedDelete: the API server refuses the
	// request.
	ReasonFailedCreate = "FailedCreate"
	ReasonFailedUpdate = "FailedUpdate"
	ReasonFailedDelete = "FailedDelete"
	// ReasonMountFailed: the node cannot mount a ConfigMap, a Secret or another volume of the launcher pod. It is the kubelet's
	// reason.
	ReasonMountFailed = "FailedMount"
	// ReasonSandboxFailed: the node cannot connect the launcher pod to its networks. It is the
	// kubelet's reason, of its events.
	ReasonSandboxFailed = "FailedCreatePodSandBox"
	// ReasonSandboxStays: the node cannot disconnect the launcher pod from its networks. It is the kubelet's reason, of its events.
	ReasonSandboxStays = "FailedKillPod"
	// ReasonPaused: a guest's CPUs are stopped, or a ReplicaSet or pool is told to do nothing.
	ReasonPaused = "Paused"
)

// Reasons of a VMI that virt-controller writes.
const (
	ReasonPodNotExists = "PodNotExists"
	// ReasonSuccessfulEvict and ReasonFailedEvict are KubeVirt's, of events: a guest is evicted because its launcher is outdated.
	ReasonSuccessfulEvict = "SuccessfulEvict"
	ReasonFailedEvict     = "FailedEvict"
	ReasonPodDeleted      = "PodDeleted"
	// ReasonPodTerminating is KubeVirt's: the launcher pod is being deleted. virt-handler leaves it in Ready.
	ReasonPodTerminating = "PodTerminating"
	ReasonLauncherKilled = "LauncherKilled"
	// ReasonPvcNotFound and ReasonDataVolumeFailed are KubeVirt's: a claim is missing, or a
	// disk could not be filled.
	ReasonPvcNotFound        = "FailedPvcNotFound"
	ReasonDataVolumeFailed   = "FailedDataVolumeImport"
	ReasonDataVolumeNotReady = "DataVolumeNotReady"
	// ReasonStateClaim is KubeVirt's: there is no claim for the guest's state, and none could be made.
	ReasonStateClaim = "FailedBackendStorageCreate"
	// ReasonStateLeft: a guest begins without state, and there is a claim that may have its state of before.
	ReasonStateLeft = "StateLeftBehind"
	// ReasonRejected and ReasonOOMKilled are the kubelet's: it rejected the pod, or the kernel
	// killed for memory.
	ReasonRejected  = "UnexpectedAdmissionError"
	ReasonOOMKilled = "OOMKilled"
	// ReasonNoImageVolumes: the pod has image volumes, and its node has none.
	ReasonNoImageVolumes = "NoImageVolumes"
	// ReasonEvictionRequested is KubeVirt's, of the condition EvictionRequested.
	ReasonEvictionRequested = "EvictionRequested"
	// ReasonVirtioFSDEnded is the reason of FilesystemFailed.
	ReasonVirtioFSDEnded = "VirtioFSDEnded"
	// ReasonPasstEnded is the reason of NetworkFailed.
	ReasonPasstEnded = "PasstEnded"
	// ReasonSandboxSlow: the node has not connected the launcher pod to its networks for long, and does not say why.
	ReasonSandboxSlow = "PodNotConnected"
	// ReasonMACInUse is the reason of SharedMAC.
	ReasonMACInUse = "MACInUse"
	// ReasonNotPaused is the reason of the pod's readiness gate.
	ReasonNotPaused = "NotPaused"
)

// Reasons of a VMI that virt-handler writes.
const (
	// ReasonStartFailed is the reason of Synchronized while virt-handler cannot start the
	// guest. Only virt-handler takes that condition back.
	ReasonStartFailed = "StartFailed"
	// ReasonGuestNotRunning is virt-controller's too, while there is no launcher.
	ReasonGuestNotRunning = "GuestNotRunning"
	// ReasonGuestFailed: the guest has failed, and its launcher is kept.
	ReasonGuestFailed = "GuestFailed"
	// ReasonGuestShuttingDown: the guest was asked to shut down, and has not ended yet.
	ReasonGuestShuttingDown     = "GuestShuttingDown"
	ReasonQEMUNotResponding     = "QEMUNotResponding"
	ReasonLauncherNotResponding = "LauncherNotResponding"
	// ReasonPausedByUser and ReasonPausedIOError are KubeVirt's.
	ReasonPausedByUser  = "PausedByUser"
	ReasonPausedIOError = "PausedIOError"
	// ReasonTCG is the reason of SoftwareEmulation.
	ReasonTCG = "TCG"
	// ReasonScheduled and ReasonNotScheduled are the reasons of Realtime.
	ReasonScheduled    = "Scheduled"
	ReasonNotScheduled = "Refused"
	// ReasonFirstTouch is the reason of NUMAMemoryUnbound.
	ReasonFirstTouch = "FirstTouch"
	// ReasonMTUTooSmall and ReasonMTUTooLarge are the reasons of UnusualMTU.
	ReasonMTUTooSmall = "MTUTooSmall"
	ReasonMTUTooLarge = "MTUTooLarge"
	// ReasonTPMEmulatorEnded is the reason of TPMFailed.
	ReasonTPMEmulatorEnded = "TPMEmulatorEnded"
)

// Reasons of Ready for a guest that runs: GuestRunning if no readiness probe asks it. Otherwise
// virt-controller chooses one of the other two.
const (
	ReasonGuestRunning = "GuestRunning"
	ReasonGuestReady   = "GuestReady"
	// ReasonContainersNotReady is the kubelet's: the readiness probe has failed,
	// or not succeeded yet.
	ReasonContainersNotReady = "ContainersNotReady"

	MessageGuestRunning       = "the guest's CPUs run"
	MessageGuestReady         = "the guest runs, and answers its readiness probe"
	MessageContainersNotReady = "the guest runs, and does not answer its readiness probe"
)

// Reasons that have to do with presets, under KubeVirt's names.
const (
	// ReasonPresetFailed: the presets that select a new VMI cannot be applied.
	ReasonPresetFailed = "PresetFailed"
	// ReasonPresetOverridden is of an event: a VMI's own value wins over a preset's.
	ReasonPresetOverridden = "Override"
)

// Reasons of a VirtualMachine.
const (
	ReasonVMINotExists        = "VMINotExists"
	ReasonVMIConditionMissing = "VMIConditionMissing"
	ReasonTemplateChanged     = "TemplateChanged"
	// ReasonGuestNotStarted: the last VMI failed before its guest ran.
	ReasonGuestNotStarted = "GuestNotStarted"
	// ReasonFailedFindInstancetype and ReasonFailedFindPreference are KubeVirt's: what the VM names is not there.
	ReasonFailedFindInstancetype = "FailedFindInstancetype"
	ReasonFailedFindPreference   = "FailedFindPreference"
	// ReasonVolumesToCopy: disks wait for the migration that copies them. ReasonVolumesUnready: they
	// wait for something else first. ReasonVolumesNotCopied: the guest has ended before.
	ReasonVolumesToCopy    = "VolumesToCopy"
	ReasonVolumesUnready   = "VolumesUnready"
	ReasonVolumesNotCopied = "VolumesNotCopied"
	// ReasonFailedDataVolumeCreate and ReasonUnauthorizedDataVolumeCreate are KubeVirt's: a
	// DataVolume could not be made, or the VM's service account may not clone what the DataVolume
	// is filled from. ReasonSuccessfulDataVolumeCreate is of an event.
	ReasonFailedDataVolumeCreate       = "FailedDataVolumeCreate"
	ReasonUnauthorizedDataVolumeCreate = "UnauthorizedDataVolumeCreate"
	ReasonSuccessfulDataVolumeCreate   = "SuccessfulDataVolumeCreate"
)

// Reasons of ReplicaSets and pools.
const (
	ReasonFailedControl  = "FailedControl"
	ReasonFailedScaleOut = "FailedScaleOut"
	ReasonFailedScaleIn  = "FailedScaleIn"
)

// Reasons of the KubeVirt object, with KubeVirt's names.
const (
	ReasonAllComponentsReady   = "AllComponentsReady"
	ReasonComponentsNotReady   = "ComponentsNotReady"
	ReasonDeploymentInProgress = "DeploymentInProgress"
	ReasonExistingDeployment   = "ExistingDeployment"
	ReasonFieldsWithoutEffect  = "FieldsWithoutEffect"
	ReasonAllFieldsHaveEffect  = "AllFieldsHaveEffect"
)

// Reasons of a KubeVirt's condition CommonInstancetypesDeployed, besides FailedUpdate.
const (
	ReasonInstancetypesDeployed = "InstancetypesDeployed"
	ReasonInstancetypesRemoved  = "InstancetypesRemoved"
	// ReasonNamesTaken: objects that virt-controller did not create have some of the names.
	ReasonNamesTaken = "NamesTaken"
)

// Reasons of a KubeVirt's condition DataVolumesFilled.
const (
	// ReasonFillsDataVolumes: virt-controller fills DataVolumes.
	ReasonFillsDataVolumes = "FillsDataVolumes"
	// ReasonCDIInstalled: the real CDI fills DataVolumes, and virt-controller leaves them alone.
	ReasonCDIInstalled = "CDIInstalled"
	// ReasonDefinitionMissing: the cluster has no DataVolumes.
	ReasonDefinitionMissing = "DefinitionMissing"
	// ReasonDefinitionForeign: another installation brought the kind DataVolume.
	ReasonDefinitionForeign = "DefinitionForeign"
)

// Reasons of other components for which a VirtualMachine's printable status has a word: the
// scheduler's, and the kubelet's for images.
const (
	ReasonUnschedulable    = "Unschedulable"
	ReasonPVCNotReady      = "PVCNotReady"
	ReasonErrImagePull     = "ErrImagePull"
	ReasonImagePullBackOff = "ImagePullBackOff"
)
