package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubeVirt holds the cluster's configuration and says whether the components are up. Only the
// oldest KubeVirt in the components' namespace has an effect. Without one, every default holds.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=kubevirts,shortName=kv;kvs,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=.status.phase
type KubeVirt struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec KubeVirtSpec `json:"spec"`
	// +optional
	Status KubeVirtStatus `json:"status,omitempty"`
}

// KubeVirtList is a list of KubeVirts.
//
// +kubebuilder:object:root=true
type KubeVirtList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KubeVirt `json:"items"`
}

// KubeVirtSpec is the configuration, and what KubeVirt manifests carry for KubeVirt's operator.
// There is no operator here: a setting for it is accepted if ignoring it misleads nobody, and
// refused otherwise.
type KubeVirtSpec struct {
	// Configuration of the cluster.
	// +optional
	Configuration KubeVirtConfiguration `json:"configuration,omitempty"`

	// CertificateRotateStrategy must be empty.
	// +optional
	CertificateRotateStrategy *Empty `json:"certificateRotateStrategy,omitempty"`
	// CustomizeComponents must be empty; the manifests can be changed with kustomize.
	// +optional
	CustomizeComponents *Empty `json:"customizeComponents,omitempty"`
	// WorkloadUpdateStrategy must be empty: running guests are never touched.
	// +optional
	WorkloadUpdateStrategy *Empty `json:"workloadUpdateStrategy,omitempty"`
	// ImagePullPolicy has no effect: the components' manifests hold theirs.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
}

// Empty is an object that must be empty.
type Empty struct{}

// KubeVirtConfiguration has defaults and permissions for VirtualMachineInstances. A change
// holds for those that are created later. A change of useEmulation also holds for starts on the
// nodes.
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
	// MachineType is deprecated: use architectureConfiguration.amd64.machineType. Refused if
	// the two differ.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^(q35|pc-q35-[0-9]+\.[0-9]+)$`
	MachineType string `json:"machineType,omitempty"`
	// +optional
	ArchitectureConfiguration *ArchitectureConfiguration `json:"architectureConfiguration,omitempty"`
	// NetworkConfiguration is about interfaces.
	// +optional
	NetworkConfiguration *NetworkConfiguration `json:"network,omitempty"`
	// +optional
	VirtualMachineOptions *VirtualMachineOptions `json:"virtualMachineOptions,omitempty"`
	// HostDisk permits disks in files of the nodes. KubeVirt has no such field.
	// +optional
	HostDisk *HostDiskConfiguration `json:"hostDisk,omitempty"`
}

// VirtualMachineOptions has defaults for what guests get beside their hardware.
type VirtualMachineOptions struct {
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
	// FeatureGates have no effect: supported fields need no gate, and a VirtualMachineInstance
	// with others is refused by their names.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=128
	FeatureGates []string `json:"featureGates,omitempty"`
}

// ArchitectureConfiguration holds defaults by the guest's architecture.
type ArchitectureConfiguration struct {
	// +optional
	Amd64 *ArchitectureSpecificConfiguration `json:"amd64,omitempty"`
}

// ArchitectureSpecificConfiguration holds defaults for one architecture.
type ArchitectureSpecificConfiguration struct {
	// MachineType is the machine type of guests that name none. Default: q35.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^(q35|pc-q35-[0-9]+\.[0-9]+)$`
	MachineType string `json:"machineType,omitempty"`
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
}

// KubeVirtPhase is where the installation is.
type KubeVirtPhase string

// Phases of a KubeVirt.
const (
	// KubeVirtPhaseDeploying: not every component has been up yet.
	KubeVirtPhaseDeploying KubeVirtPhase = "Deploying"
	// KubeVirtPhaseDeployed: every component was up.
	KubeVirtPhaseDeployed KubeVirtPhase = "Deployed"
)

// KubeVirtStatus says whether the components are up.
type KubeVirtStatus struct {
	// +optional
	// +kubebuilder:validation:Enum=Deploying;Deployed
	Phase KubeVirtPhase `json:"phase,omitempty"`
	// Conditions: Available, Progressing, Degraded.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []KubeVirtCondition `json:"conditions,omitempty"`
	// ObservedGeneration is the generation of the spec in force.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// ObservedKubeVirtVersion is the tag of the image that virt-controller
	// runs, once everything is up.
	// +optional
	ObservedKubeVirtVersion string `json:"observedKubeVirtVersion,omitempty"`
	// TargetKubeVirtVersion is the tag of the image that virt-controller's
	// Deployment asks for.
	// +optional
	TargetKubeVirtVersion string `json:"targetKubeVirtVersion,omitempty"`
}

// KubeVirtConditionType names a condition of a KubeVirt.
type KubeVirtConditionType string

// Conditions of a KubeVirt, with KubeVirt's names.
const (
	// KubeVirtConditionAvailable: every component is up somewhere; guests can be started.
	KubeVirtConditionAvailable KubeVirtConditionType = "Available"
	// KubeVirtConditionProgressing: a new version is being rolled out.
	KubeVirtConditionProgressing KubeVirtConditionType = "Progressing"
	// KubeVirtConditionDegraded: a component is not up everywhere.
	KubeVirtConditionDegraded KubeVirtConditionType = "Degraded"
)

// KubeVirtCondition is one condition of a KubeVirt.
type KubeVirtCondition struct {
	Type KubeVirtConditionType `json:"type"`
	// Status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
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

// SetCondition sets a condition; its transition time changes only with its status.
func (s *KubeVirtStatus) SetCondition(c KubeVirtCondition, now metav1.Time) {
	c.LastTransitionTime = now
	for i := range s.Conditions {
		old := &s.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		*old = c
		return
	}
	s.Conditions = append(s.Conditions, c)
}
