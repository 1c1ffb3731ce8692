package v1

// Reasons of conditions, and of the phase Failed, are here in one place: one program
// writes them, and others read them. How a guest ended is said by its launcher, whose reasons
// are in launcher/control; of a pod that waits, the kubelet's own are taken over.

// Reasons that several kinds have.
const (
	// ReasonInvalidSpec: validation refuses it.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonFailedCreate, ReasonFailedUpdate, ReasonFailedDelete: the API server
	// says no.
	ReasonFailedCreate = "FailedCreate"
	ReasonFailedUpdate = "FailedUpdate"
	ReasonFailedDelete = "FailedDelete"
	// ReasonPaused: a guest's CPUs are stopped; of ReplicaSets and pools, that they
	// are told to do nothing.
	ReasonPaused = "Paused"
)

// Reasons of a VMI that virt-controller writes.
const (
	ReasonPodNotExists   = "PodNotExists"
	ReasonPodDeleted     = "PodDeleted"
	ReasonPodTerminating = "PodTerminating"
	ReasonLauncherKilled = "LauncherKilled"
	ReasonNotMigratable  = "NotMigratable"
	// ReasonPvcNotFound and ReasonDataVolumeFailed are KubeVirt's: a claim is
	// missing, and a disk could not be filled.
	ReasonPvcNotFound        = "FailedPvcNotFound"
	ReasonDataVolumeFailed   = "FailedDataVolumeImport"
	ReasonDataVolumeNotReady = "DataVolumeNotReady"
	// ReasonRejected and ReasonOOMKilled are the kubelet's: it turned the pod away,
	// and the kernel killed for memory.
	ReasonRejected  = "UnexpectedAdmissionError"
	ReasonOOMKilled = "OOMKilled"
	// ReasonNotPaused is that of the pod's readiness gate.
	ReasonNotPaused = "NotPaused"
)

// Reasons of a VMI that virt-handler writes.
const (
	// ReasonStartFailed is the reason of Synchronized while virt-handler cannot
	// start the guest; only it takes that condition back.
	ReasonStartFailed = "StartFailed"
	// ReasonGuestNotRunning is virt-controller's too, before there is a launcher.
	ReasonGuestNotRunning = "GuestNotRunning"
	// ReasonGuestShuttingDown: it was asked to, and has not ended yet.
	ReasonGuestShuttingDown     = "GuestShuttingDown"
	ReasonQEMUNotResponding     = "QEMUNotResponding"
	ReasonLauncherNotResponding = "LauncherNotResponding"
	// ReasonPausedByUser and ReasonPausedIOError are KubeVirt's.
	ReasonPausedByUser  = "PausedByUser"
	ReasonPausedIOError = "PausedIOError"
	// ReasonTCG is that of SoftwareEmulation.
	ReasonTCG = "TCG"
)

// Of a guest that runs, Ready has one of these reasons: GuestRunning where no
// readiness probe asks it, and one of the others, which virt-controller chooses,
// where one does.
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

// Reasons of a VirtualMachine.
const (
	ReasonVMINotExists        = "VMINotExists"
	ReasonVMIConditionMissing = "VMIConditionMissing"
	ReasonTemplateChanged     = "TemplateChanged"
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
)

// Reasons of others that a VirtualMachine's printable status has a word for: the
// scheduler's, and the kubelet's of images.
const (
	ReasonUnschedulable    = "Unschedulable"
	ReasonPVCNotReady      = "PVCNotReady"
	ReasonErrImagePull     = "ErrImagePull"
	ReasonImagePullBackOff = "ImagePullBackOff"
)
