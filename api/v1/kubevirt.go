package v1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// KubeVirtOperatorFinalizer is the finalizer that KubeVirt's operator gives a KubeVirt. Kubeqemu gives none.
const KubeVirtOperatorFinalizer = "foregroundDeleteKubeVirt"

// KubeVirtNamespace is the namespace of the components.
const KubeVirtNamespace = "kubevirt"

// KubeVirt holds the cluster's configuration and says whether the components are up. It may be in
// any namespace. If there are several, one has an effect; see KubeVirtInForce. Without one, every
// default holds.
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
// There is no operator here. A field without an effect is kept, and the condition
// FieldsWithoutEffect names it.
type KubeVirtSpec struct {
	// Configuration of the cluster.
	// +optional
	Configuration KubeVirtConfiguration `json:"configuration,omitempty"`
	// WorkloadUpdateStrategy says what becomes of running guests when virt-controller makes launchers of another image.
	// +optional
	WorkloadUpdateStrategy *WorkloadUpdateStrategy `json:"workloadUpdateStrategy,omitempty"`
	OperatorSettings       `json:",inline"`
}

// OperatorSettings are for KubeVirt's operator, and have no effect here: the manifests, their
// kustomizations and the Helm chart's values say how the components are installed.
type OperatorSettings struct {
	// ImageTag has no effect.
	// +optional
	ImageTag string `json:"imageTag,omitempty"`
	// ImageRegistry has no effect.
	// +optional
	ImageRegistry string `json:"imageRegistry,omitempty"`
	// ImagePullPolicy has no effect.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// ImagePullSecrets have no effect.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// MonitorNamespace has no effect.
	// +optional
	MonitorNamespace string `json:"monitorNamespace,omitempty"`
	// ServiceMonitorNamespace has no effect.
	// +optional
	ServiceMonitorNamespace string `json:"serviceMonitorNamespace,omitempty"`
	// MonitorAccount has no effect.
	// +optional
	MonitorAccount string `json:"monitorAccount,omitempty"`
	// UninstallStrategy has no effect.
	// +optional
	// +kubebuilder:validation:Enum=RemoveWorkloads;BlockUninstallIfWorkloadsExist
	UninstallStrategy string `json:"uninstallStrategy,omitempty"`
	// CertificateRotateStrategy has no effect.
	// +optional
	CertificateRotateStrategy *Kept `json:"certificateRotateStrategy,omitempty"`
	// ProductVersion has no effect.
	// +optional
	ProductVersion string `json:"productVersion,omitempty"`
	// ProductName has no effect.
	// +optional
	ProductName string `json:"productName,omitempty"`
	// ProductComponent has no effect.
	// +optional
	ProductComponent string `json:"productComponent,omitempty"`
	// SynchronizationPort has no effect.
	// +optional
	SynchronizationPort string `json:"synchronizationPort,omitempty"`
	// Infra has no effect.
	// +optional
	Infra *Kept `json:"infra,omitempty"`
	// Workloads have no effect.
	// +optional
	Workloads *Kept `json:"workloads,omitempty"`
	// CustomizeComponents have no effect.
	// +optional
	CustomizeComponents *Kept `json:"customizeComponents,omitempty"`
}

// Kept is an object that is stored as it is and that nothing reads.
//
// +kubebuilder:pruning:PreserveUnknownFields
// +kubebuilder:validation:Type=object
type Kept struct {
	runtime.RawExtension `json:",inline"`
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
	// Conditions: Created, Available, Progressing, Degraded, FieldsWithoutEffect,
	// CommonInstancetypesDeployed.
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
	// ObservedKubeVirtRegistry is where the image that virt-controller runs comes from, once
	// everything is up.
	// +optional
	ObservedKubeVirtRegistry string `json:"observedKubeVirtRegistry,omitempty"`
	// TargetKubeVirtRegistry is where the image that virt-controller's Deployment asks for comes
	// from.
	// +optional
	TargetKubeVirtRegistry string `json:"targetKubeVirtRegistry,omitempty"`
	// OperatorVersion is the same as observedKubeVirtVersion, for KubeVirt's clients: there is no
	// operator.
	// +optional
	OperatorVersion string `json:"operatorVersion,omitempty"`
	// DefaultArchitecture of guests that name none.
	// +optional
	DefaultArchitecture string `json:"defaultArchitecture,omitempty"`
}

// KubeVirtConditionType names a condition of a KubeVirt.
type KubeVirtConditionType string

// Conditions of a KubeVirt.
const (
	// KubeVirtConditionCreated: every component's Deployment or DaemonSet is there.
	KubeVirtConditionCreated KubeVirtConditionType = "Created"
	// KubeVirtConditionAvailable: every component is up somewhere; guests can be started.
	KubeVirtConditionAvailable KubeVirtConditionType = "Available"
	// KubeVirtConditionProgressing: a new version is being rolled out.
	KubeVirtConditionProgressing KubeVirtConditionType = "Progressing"
	// KubeVirtConditionDegraded: a component is not up everywhere.
	KubeVirtConditionDegraded KubeVirtConditionType = "Degraded"
	// KubeVirtConditionFieldsWithoutEffect: the spec has fields that are kept and change nothing.
	// The message names each of them and says why. KubeVirt has no such condition.
	KubeVirtConditionFieldsWithoutEffect KubeVirtConditionType = "FieldsWithoutEffect"
	// KubeVirtConditionCommonInstancetypesDeployed: virt-controller has created the cluster-wide
	// instancetypes and preferences of KubeVirt's names. False: it has deleted them, or it cannot
	// create some. Without the condition, nobody asked for them. KubeVirt has no such condition.
	KubeVirtConditionCommonInstancetypesDeployed KubeVirtConditionType = "CommonInstancetypesDeployed"
	// KubeVirtConditionDataVolumesFilled: virt-controller fills DataVolumes. False: it was told to, and
	// leaves them alone; the message says why. Without the condition, it was not told to. KubeVirt has
	// no such condition.
	KubeVirtConditionDataVolumesFilled KubeVirtConditionType = "DataVolumesFilled"
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

// RemoveCondition removes a condition, if it is there.
func (s *KubeVirtStatus) RemoveCondition(conditionType KubeVirtConditionType) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c KubeVirtCondition) bool { return c.Type == conditionType })
}
