package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Empty is an object that must be empty.
type Empty struct{}

// KubeVirtConfiguration has defaults and permissions for VirtualMachineInstances. A change
// holds for those that are created later. A change of useEmulation, logVerbosity,
// virtualMachineInstancesPerNode, obsoleteCPUModels or commonInstancetypesDeployment holds at once, and a change of
// smbios or disableFreePageReporting for each start on a node. A field without an effect is kept, and the KubeVirt's condition
// FieldsWithoutEffect names it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.machineType) || !has(self.architectureConfiguration) || !has(self.architectureConfiguration.amd64) || !has(self.architectureConfiguration.amd64.machineType) || self.machineType == self.architectureConfiguration.amd64.machineType",message="machineType (deprecated) and architectureConfiguration.amd64.machineType differ",fieldPath=".machineType"
type KubeVirtConfiguration struct {
	// +optional
	DeveloperConfiguration *DeveloperConfiguration `json:"developerConfiguration,omitempty"`
	// CPUModel is the CPU model of guests that name none. Default: host-model.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	CPUModel string `json:"cpuModel,omitempty"`
	// CPURequest is what a guest's pod requests of the CPU if the guest names no request. It
	// takes precedence over cpuAllocationRatio.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!string(self).contains('e') && (!string(self).contains('E') || string(self).endsWith('E') || string(self).endsWith('Ei')) && !string(self).startsWith('-')",message="must be positive; quantities with exponents are refused"
	CPURequest *resource.Quantity `json:"cpuRequest,omitempty"`
	// MachineType is deprecated: use architectureConfiguration.amd64.machineType. Refused if
	// the two differ.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^(q35|pc-q35-[0-9]+\.[0-9]+|pc-q35-rhel[0-9]+\.[0-9]+\.[0-9]+)$`
	MachineType string `json:"machineType,omitempty"`
	// EmulatedMachines is deprecated: use architectureConfiguration.amd64.emulatedMachines, which
	// takes precedence.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	EmulatedMachines []string `json:"emulatedMachines,omitempty"`
	// +optional
	ArchitectureConfiguration *ArchitectureConfiguration `json:"architectureConfiguration,omitempty"`
	// ImagePullPolicy of virt-launcher's image. Default: IfNotPresent.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// DefaultRuntimeClass is the RuntimeClass of the launcher pods.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	DefaultRuntimeClass string `json:"defaultRuntimeClass,omitempty"`
	// SeccompConfiguration says which system calls the launcher pods may make.
	// +optional
	SeccompConfiguration *SeccompConfiguration `json:"seccompConfiguration,omitempty"`
	// EvictionStrategy of new guests that name none.
	// +optional
	// +kubebuilder:validation:Enum=None;LiveMigrate;LiveMigrateIfPossible;External
	EvictionStrategy *EvictionStrategy `json:"evictionStrategy,omitempty"`
	// AdditionalGuestMemoryOverheadRatio multiplies the memory that a pod books besides the
	// guest's. Default: 1, which is the least.
	// +optional
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,2}(\.[0-9]{1,6})?$`
	AdditionalGuestMemoryOverheadRatio *string `json:"additionalGuestMemoryOverheadRatio,omitempty"`
	// SMBIOS holds texts that the guest finds in its SMBIOS tables.
	// +optional
	SMBIOS *SMBIOSConfiguration `json:"smbios,omitempty"`
	// VirtualMachineInstancesPerNode is how many guests a node takes at most. Default: 110. A
	// larger number has no effect.
	// +optional
	// +kubebuilder:validation:Minimum=1
	VirtualMachineInstancesPerNode *int `json:"virtualMachineInstancesPerNode,omitempty"`
	// NetworkConfiguration is about interfaces.
	// +optional
	NetworkConfiguration *NetworkConfiguration `json:"network,omitempty"`
	// +optional
	VirtualMachineOptions *VirtualMachineOptions `json:"virtualMachineOptions,omitempty"`
	// VMRolloutStrategy says what a change of a VirtualMachine's template does while the guest
	// runs. Stage: the change holds from the next start on. LiveUpdate: a guest that can migrate
	// follows nodeSelector, affinity and tolerations, and its next migration heeds them; other
	// changes hold from the next start on. Default: LiveUpdate.
	// +optional
	// +kubebuilder:validation:Enum=Stage;LiveUpdate
	VMRolloutStrategy *RolloutStrategy `json:"vmRolloutStrategy,omitempty"`
	// TLSConfiguration: every server speaks TLS 1.3. An older minimum changes nothing, and TLS
	// 1.3 has no choice of ciphers.
	// +optional
	TLSConfiguration *TLSConfiguration `json:"tlsConfiguration,omitempty"`
	// Instancetype says how a VirtualMachine refers to its instancetype.
	// +optional
	Instancetype *InstancetypeConfiguration `json:"instancetype,omitempty"`
	// RoleAggregationStrategy: the cluster roles are parts of Kubernetes' own roles admin, edit
	// and view (AggregateToDefault). Manual has no effect: leave the labels out of the manifests.
	// +optional
	// +kubebuilder:validation:Enum=AggregateToDefault;Manual
	RoleAggregationStrategy *string `json:"roleAggregationStrategy,omitempty"`
	// CommonInstancetypesDeployment is about the cluster-wide instancetypes and preferences that
	// have the names of KubeVirt's.
	// +optional
	// +nullable
	CommonInstancetypesDeployment *CommonInstancetypesDeployment `json:"commonInstancetypesDeployment,omitempty"`
	// HostDisk permits disks in files of the nodes. KubeVirt has no such field.
	// +optional
	HostDisk *HostDiskConfiguration `json:"hostDisk,omitempty"`

	// VMStateStorageClass is the StorageClass of the claims with guests' state, such as persistent UEFI variables. Default: the
	// default class of VMs' disks (annotation storageclass.kubevirt.io/is-default-virt-class), else the cluster's default class.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`
	VMStateStorageClass string `json:"vmStateStorageClass,omitempty"`

	// MigrationConfiguration bounds live migrations.
	// +optional
	MigrationConfiguration *ClusterMigrationConfiguration `json:"migrations,omitempty"`

	// ObsoleteCPUModels, with the value true, are CPU models that no node is labelled with, so that no guest that names one is
	// started. Default: KubeVirt's, such as qemu64, kvm64 and Conroe. An empty map has none.
	// +optional
	// +kubebuilder:validation:MaxProperties=256
	ObsoleteCPUModels map[string]bool `json:"obsoleteCPUModels,omitempty"`

	UnusedConfiguration `json:",inline"`
}

// UnusedConfiguration holds what nothing reads yet. The condition FieldsWithoutEffect says why of
// each field that is set.
type UnusedConfiguration struct {
	// OVMFPath has no effect.
	// +optional
	OVMFPath string `json:"ovmfPath,omitempty"`
	// SELinuxLauncherType has no effect.
	// +optional
	SELinuxLauncherType string `json:"selinuxLauncherType,omitempty"`
	// SupportContainerResources have no effect.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	SupportContainerResources []Kept `json:"supportContainerResources,omitempty"`
	// SupportedGuestAgentVersions have no effect.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	SupportedGuestAgentVersions []string `json:"supportedGuestAgentVersions,omitempty"`
	// MemBalloonStatsPeriod has no effect.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MemBalloonStatsPeriod *int64 `json:"memBalloonStatsPeriod,omitempty"`
	// PermittedHostDevices have no effect.
	// +optional
	PermittedHostDevices *Kept `json:"permittedHostDevices,omitempty"`
	// MediatedDevicesConfiguration has no effect.
	// +optional
	MediatedDevicesConfiguration *Kept `json:"mediatedDevicesConfiguration,omitempty"`
	// MinCPUModel has no effect.
	// +optional
	MinCPUModel string `json:"minCPUModel,omitempty"`
	// APIConfiguration has no effect.
	// +optional
	APIConfiguration *Kept `json:"apiConfiguration,omitempty"`
	// WebhookConfiguration has no effect.
	// +optional
	WebhookConfiguration *Kept `json:"webhookConfiguration,omitempty"`
	// ControllerConfiguration has no effect.
	// +optional
	ControllerConfiguration *Kept `json:"controllerConfiguration,omitempty"`
	// HandlerConfiguration has no effect.
	// +optional
	HandlerConfiguration *Kept `json:"handlerConfiguration,omitempty"`
	// KSMConfiguration has no effect.
	// +optional
	KSMConfiguration *Kept `json:"ksmConfiguration,omitempty"`
	// AutoCPULimitNamespaceLabelSelector selects namespaces by their labels. A launcher pod there may use as many CPUs as its guest has,
	// unless its VirtualMachineInstance gives a limit.
	// +optional
	AutoCPULimitNamespaceLabelSelector *metav1.LabelSelector `json:"autoCPULimitNamespaceLabelSelector,omitempty"`
	// LiveUpdateConfiguration has no effect.
	// +optional
	LiveUpdateConfiguration *Kept `json:"liveUpdateConfiguration,omitempty"`
	// VirtTemplateDeployment has no effect.
	// +optional
	// +nullable
	VirtTemplateDeployment *Kept `json:"virtTemplateDeployment,omitempty"`
	// Hypervisors have no effect.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1
	Hypervisors []Kept `json:"hypervisors,omitempty"`
	// ChangedBlockTrackingLabelSelectors have no effect.
	// +optional
	// +nullable
	ChangedBlockTrackingLabelSelectors *Kept `json:"changedBlockTrackingLabelSelectors,omitempty"`
	// PersistentReservationConfiguration has no effect.
	// +optional
	PersistentReservationConfiguration *Kept `json:"persistentReservationConfiguration,omitempty"`
	// ConfidentialCompute has no effect.
	// +optional
	ConfidentialCompute *Kept `json:"confidentialCompute,omitempty"`
}

// VirtualMachineOptions has defaults for what guests get beside their hardware.
type VirtualMachineOptions struct {
	// DisableFreePageReporting: guests do not give back the memory that they have freed.
	// +optional
	DisableFreePageReporting *Empty `json:"disableFreePageReporting,omitempty"`
	// DisableSerialConsoleLog keeps the serial ports' output out of the logs
	// of the pods of guests whose logSerialConsole is unset.
	// +optional
	DisableSerialConsoleLog *Empty `json:"disableSerialConsoleLog,omitempty"`
}

// DeveloperConfiguration has the name that KubeVirt gives it.
type DeveloperConfiguration struct {
	// UseEmulation permits QEMU's TCG, which is slow and no isolation boundary, on nodes where
	// KVM does not work. Without it such nodes offer no devices.kubevirt.io/vm. With it, every
	// guest's pod books 160 MiB for TCG, because a node without KVM may run it. Default: false.
	// +optional
	UseEmulation bool `json:"useEmulation,omitempty"`
	// CPUAllocationRatio is how many vCPUs a guest's pod has for each CPU that it requests, if
	// the guest names no request. Default: 10.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	CPUAllocationRatio int `json:"cpuAllocationRatio,omitempty"`
	// MemoryOvercommit is the guests' memory in percent of the memory that their pods request
	// for it, if the guest names no request. Default: 100. With 200 a pod requests half.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MemoryOvercommit int `json:"memoryOvercommit,omitempty"`
	// NodeSelectors are labels that a node must have to run guests, unless a guest's own
	// nodeSelector has another value.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	NodeSelectors map[string]string `json:"nodeSelectors,omitempty"`
	// LogVerbosity is how much the components log.
	// +optional
	LogVerbosity *LogVerbosity `json:"logVerbosity,omitempty"`
	// FeatureGates: with ImageVolume, container disks are image volumes, whatever the nodes say. The others have no
	// effect.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=128
	FeatureGates []string `json:"featureGates,omitempty"`
	// DisabledFeatureGates: with ImageVolume, each container disk is a container of its pod. The others have no effect.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=128
	DisabledFeatureGates []string `json:"disabledFeatureGates,omitempty"`
	// PVCTolerateLessSpaceUpToPercent has no effect: it is always 10.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PVCTolerateLessSpaceUpToPercent int `json:"pvcTolerateLessSpaceUpToPercent,omitempty"`
	// MinimumReservePVCBytes has no effect.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinimumReservePVCBytes int64 `json:"minimumReservePVCBytes,omitempty"`
	// MinimumClusterTSCFrequency is the least frequency of the TSC, in Hz, that a guest gets that needs a frequency of its own.
	// +optional
	MinimumClusterTSCFrequency *int64 `json:"minimumClusterTSCFrequency,omitempty"`
	// DiskVerification has no effect: no component runs a program that reads a disk's format.
	// +optional
	DiskVerification *Kept `json:"diskVerification,omitempty"`
	// ClusterProfiler has no effect.
	// +optional
	ClusterProfiler bool `json:"clusterProfiler,omitempty"`
}

// LogVerbosity is how much each component logs. 0, the default, is what an administrator wants to
// know; 2 and more are for whoever looks for a fault; 5 and more have each step of the
// controllers.
type LogVerbosity struct {
	// VirtAPI is for virt-api.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VirtAPI int32 `json:"virtAPI,omitempty"`
	// VirtController is for virt-controller.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VirtController int32 `json:"virtController,omitempty"`
	// VirtHandler is for virt-handler.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VirtHandler int32 `json:"virtHandler,omitempty"`
	// VirtLauncher holds for launcher pods that are created later.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VirtLauncher int32 `json:"virtLauncher,omitempty"`
	// VirtOperator has no effect: there is no operator.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VirtOperator int32 `json:"virtOperator,omitempty"`
	// VirtSynchronizationController has no effect: there is no such component.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VirtSynchronizationController int32 `json:"virtSynchronizationController,omitempty"`
	// NodeVerbosity is for virt-api, virt-controller and virt-handler, by the name of the node
	// that each runs on. It takes precedence.
	// +optional
	// +kubebuilder:validation:MaxProperties=5000
	NodeVerbosity map[string]int32 `json:"nodeVerbosity,omitempty"`
}

// SMBIOSConfiguration holds texts of the guest's SMBIOS structure type 1 (System). Defaults:
// manufacturer and family KubeVirt, product None.
type SMBIOSConfiguration struct {
	// Manufacturer of the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[ -~]*$`
	Manufacturer string `json:"manufacturer,omitempty"`
	// Product is the machine's name.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[ -~]*$`
	Product string `json:"product,omitempty"`
	// Version of the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[ -~]*$`
	Version string `json:"version,omitempty"`
	// SKU is the machine's stock keeping unit.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[ -~]*$`
	SKU string `json:"sku,omitempty"`
	// Family of machines.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[ -~]*$`
	Family string `json:"family,omitempty"`
}

// SeccompConfiguration says which system calls are permitted.
type SeccompConfiguration struct {
	// +optional
	VirtualMachineInstanceProfile *VirtualMachineInstanceProfile `json:"virtualMachineInstanceProfile,omitempty"`
}

// VirtualMachineInstanceProfile is the seccomp profile of the launcher pods.
type VirtualMachineInstanceProfile struct {
	// +optional
	CustomProfile *CustomProfile `json:"customProfile,omitempty"`
}

// CustomProfile is a seccomp profile.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.localhostProfile) && has(self.runtimeDefaultProfile) && self.runtimeDefaultProfile)",message="localhostProfile and runtimeDefaultProfile exclude each other"
type CustomProfile struct {
	// LocalhostProfile is a file below the kubelet's folder of seccomp profiles, which must be on
	// every node. virt-launcher and QEMU need the system calls that the container runtime's default
	// profile permits. kubevirt/kubevirt.json, which KubeVirt's virt-handler installs, has no
	// effect.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[^/].*$`
	LocalhostProfile *string `json:"localhostProfile,omitempty"`
	// RuntimeDefaultProfile is the container runtime's own profile, which is the default.
	// +optional
	RuntimeDefaultProfile bool `json:"runtimeDefaultProfile,omitempty"`
}

// TLSConfiguration is about the components' servers.
type TLSConfiguration struct {
	// MinTLSVersion has no effect, unless it is what is so anyway.
	// +optional
	// +kubebuilder:validation:Enum=VersionTLS10;VersionTLS11;VersionTLS12;VersionTLS13
	MinTLSVersion string `json:"minTLSVersion,omitempty"`
	// Ciphers have no effect.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Ciphers []string `json:"ciphers,omitempty"`
}

// InstancetypeConfiguration is about instancetypes and preferences.
type InstancetypeConfiguration struct {
	// ReferencePolicy: a VirtualMachine keeps its reference (reference). expand and expandAll
	// have no effect.
	// +optional
	// +nullable
	// +kubebuilder:validation:Enum=reference;expand;expandAll
	ReferencePolicy *string `json:"referencePolicy,omitempty"`
}

// CommonInstancetypesDeployment is about the cluster-wide instancetypes and preferences that have
// the names of KubeVirt's.
type CommonInstancetypesDeployment struct {
	// Enabled: with true, virt-controller creates these instancetypes and preferences and keeps them
	// as they are. With false, it deletes those that it created. Unset: it does neither, or as with
	// true if it runs with --common-instancetypes.
	// +optional
	// +nullable
	Enabled *bool `json:"enabled,omitempty"`
}

// ArchitectureConfiguration holds defaults by the guest's architecture. Guests are amd64 or arm64.
type ArchitectureConfiguration struct {
	// +optional
	Amd64 *ArchitectureSpecificConfiguration `json:"amd64,omitempty"`
	// +optional
	Arm64 *ARM64Configuration `json:"arm64,omitempty"`
	// Ppc64le has no effect.
	// +optional
	Ppc64le *Kept `json:"ppc64le,omitempty"`
	// S390x has no effect.
	// +optional
	S390x *Kept `json:"s390x,omitempty"`
	// DefaultArchitecture, amd64 or arm64, is that of new guests that name neither an architecture nor a machine type.
	// Others have no effect. Default: amd64.
	// +optional
	DefaultArchitecture string `json:"defaultArchitecture,omitempty"`
}

// ArchitectureSpecificConfiguration holds defaults for one architecture.
type ArchitectureSpecificConfiguration struct {
	// MachineType is the machine type of guests that name none. Default: q35.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^(q35|pc-q35-[0-9]+\.[0-9]+|pc-q35-rhel[0-9]+\.[0-9]+\.[0-9]+)$`
	MachineType string `json:"machineType,omitempty"`
	// EmulatedMachines are patterns (as q35* or pc-q35-9.?) of the machine types that guests may
	// have. A pattern that q35 matches permits each of q35's versions, because a VirtualMachine
	// keeps the version of its first start. A VirtualMachine with another type does not start
	// again. The default machine type must be permitted. Default: every machine type.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	EmulatedMachines []string `json:"emulatedMachines,omitempty"`
	// OVMFPath has no effect: the launcher's image has the firmware.
	// +optional
	OVMFPath string `json:"ovmfPath,omitempty"`
}

// ARM64Configuration holds defaults for guests of arm64.
type ARM64Configuration struct {
	// MachineType is the machine type of guests that name none. Default: virt.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^(virt|virt-[0-9]+\.[0-9]+)$`
	MachineType string `json:"machineType,omitempty"`
	// EmulatedMachines are patterns (as virt* or virt-11.?) of the machine types that guests may have, as those of amd64.
	// Default: every machine type.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	EmulatedMachines []string `json:"emulatedMachines,omitempty"`
	// OVMFPath has no effect: the launcher's image has the firmware.
	// +optional
	OVMFPath string `json:"ovmfPath,omitempty"`
	// UseEmulation runs new guests of arm64 on nodes of amd64, by QEMU's TCG, which is slow and no isolation boundary. They run
	// on no node of arm64 then. KubeVirt has no such field. Default: false, and guests of arm64 wait for a node of arm64.
	// +optional
	UseEmulation bool `json:"useEmulation,omitempty"`
}

// NetworkConfiguration is about interfaces.
type NetworkConfiguration struct {
	// NetworkInterface is the binding (bridge or masquerade) of guests that name neither
	// interfaces nor networks. Default: bridge.
	// +optional
	// +kubebuilder:validation:Enum=bridge;masquerade
	NetworkInterface string `json:"defaultNetworkInterface,omitempty"`
	// PermitBridgeInterfaceOnPodNetwork: false refuses bridge interfaces on
	// the pod network. Default: true.
	// +optional
	PermitBridgeInterfaceOnPodNetwork *bool `json:"permitBridgeInterfaceOnPodNetwork,omitempty"`
	// PermitSlirpInterface has no effect: slirp interfaces are refused.
	// +optional
	PermitSlirpInterface *bool `json:"permitSlirpInterface,omitempty"`
	// Binding registers plugins, which interfaces name (interfaces[].binding). Those of domainAttachmentType
	// managedTap that have nothing but migration are supported; an interface that names another one is refused.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Binding map[string]InterfaceBindingPlugin `json:"binding,omitempty"`
}

// ImageVolumeGate is KubeVirt's and Kubernetes' feature gate for image volumes.
const ImageVolumeGate = "ImageVolume"
