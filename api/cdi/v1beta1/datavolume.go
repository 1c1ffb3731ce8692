package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// DataVolume is a PersistentVolumeClaim of the same name whose disk is filled from a source. The
// claim is deleted with the DataVolume.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=datavolumes,shortName=dv;dvs,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/managed-by=kubeqemu"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=.status.phase,description="How far the DataVolume is"
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=.status.progress,description="How much of the disk is filled, or N/A"
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=.status.restartCount,description="How often the import failed and was tried again"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
type DataVolume struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec cannot be changed.
	Spec DataVolumeSpec `json:"spec"`
	// Status is written by virt-controller.
	// +optional
	Status DataVolumeStatus `json:"status,omitempty"`
}

// DataVolumeList is a list of DataVolumes.
//
// +kubebuilder:object:root=true
type DataVolumeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DataVolume `json:"items"`
}

// DataVolumeSpec is a claim and the source that fills it.
//
// +kubebuilder:validation:XValidation:rule="has(self.pvc) != has(self.storage)",message="set either storage or pvc"
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed: make another DataVolume"
// +kubebuilder:validation:XValidation:rule="!has(self.source) || !has(self.sourceRef)",message="source and sourceRef exclude each other"
type DataVolumeSpec struct {
	// Source of the disk's content. Without source and sourceRef, the claim's dataSource or
	// dataSourceRef fills the claim.
	// +optional
	Source *DataVolumeSource `json:"source,omitempty"`
	// SourceRef names a DataSource that leads to the claim whose disk is copied.
	// +optional
	SourceRef *DataVolumeSourceRef `json:"sourceRef,omitempty"`
	// PVC is the claim as it is made. On a file system, the disk is as large as the claim without the
	// file system's overhead of 5.5 %.
	// +optional
	PVC *corev1.PersistentVolumeClaimSpec `json:"pvc,omitempty"`
	// Storage is the claim by the disk that it has room for: the claim is made as much larger as a
	// file system needs. What is left out has a default.
	// +optional
	Storage *StorageSpec `json:"storage,omitempty"`
	// PriorityClassName of the importer pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// ContentType is kubevirt, a disk, which is the default. CDI's archive is not supported.
	// +optional
	ContentType DataVolumeContentType `json:"contentType,omitempty"`
	// Preallocation: the disk has no holes. Default: false.
	// +optional
	Preallocation *bool `json:"preallocation,omitempty"`

	// Checkpoints is refused: not supported yet.
	// +optional
	Checkpoints v1.UnsupportedList `json:"checkpoints,omitempty"`
	// FinalCheckpoint is refused: not supported yet.
	// +optional
	FinalCheckpoint v1.UnsupportedBool `json:"finalCheckpoint,omitempty"`
	// ServiceAccountName is refused: the importer pod has no token.
	// +optional
	ServiceAccountName v1.UnsupportedString `json:"serviceAccountName,omitempty"`
}

// StorageSpec is a claim by the disk that it has room for.
type StorageSpec struct {
	// AccessModes of the claim. Default: ReadWriteOnce.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	// Selector of volumes that the claim may be bound to.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Resources: requests.storage is the size of the disk.
	// +optional
	Resources corev1.VolumeResourceRequirements `json:"resources,omitempty"`
	// VolumeName is the volume that the claim is bound to.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	VolumeName string `json:"volumeName,omitempty"`
	// StorageClassName of the claim. Default: the cluster's default class.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`
	// VolumeMode is Filesystem, the default, or Block.
	// +optional
	VolumeMode *corev1.PersistentVolumeMode `json:"volumeMode,omitempty"`
	// DataSource that the storage fills the claim from.
	// +optional
	DataSource *corev1.TypedLocalObjectReference `json:"dataSource,omitempty"`
	// DataSourceRef is what the storage fills the claim from, of the same namespace.
	// +optional
	DataSourceRef *corev1.TypedObjectReference `json:"dataSourceRef,omitempty"`
}

// DataVolumeContentType is what a source has.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="self.size() == 0 || self == 'kubevirt'",message="only kubevirt, a disk, is supported"
type DataVolumeContentType string

// ContentKubeVirt is a disk.
const ContentKubeVirt DataVolumeContentType = "kubevirt"

// Annotations of DataVolumes and claims. These are CDI's.
const (
	// AdoptionAnnotation of a DataVolume, set to "true", lets the DataVolume take over a claim of its
	// name that is there already, as it is.
	AdoptionAnnotation = "cdi.kubevirt.io/allowClaimAdoption"
	// PopulatedForAnnotation of a claim names the DataVolume that the claim is already filled for.
	PopulatedForAnnotation = "cdi.kubevirt.io/storage.populatedFor"
	// PrePopulatedAnnotation of a DataVolume: somebody brings the claim, already filled. So backups are
	// restored.
	PrePopulatedAnnotation = "cdi.kubevirt.io/storage.prePopulated"
	// ImmediateBindingAnnotation of a DataVolume: the importer pod is the first pod of the claim, on
	// whatever node, even if the storage binds at the first pod.
	ImmediateBindingAnnotation = "cdi.kubevirt.io/storage.bind.immediate.requested"
	// PodPhaseAnnotation of a claim that CDI made, or of one for an upload, is the phase of the pod that
	// fills the claim.
	PodPhaseAnnotation = "cdi.kubevirt.io/storage.pod.phase"
	// PodReadyAnnotation of a claim for an upload is "true" while the importer takes an image.
	PodReadyAnnotation = "cdi.kubevirt.io/storage.pod.ready"
	// UploadTargetAnnotation marks a claim for an upload.
	UploadTargetAnnotation = "cdi.kubevirt.io/storage.upload.target"
	// CreatedForAnnotation of a claim is the UID of the DataVolume that the claim was made for.
	CreatedForAnnotation = "cdi.kubevirt.io/createdForDataVolume"
)

// FillsAnnotation of a DataVolume is the UID of a claim that the DataVolume fills without being its controller:
// somebody made the claim for an upload (UploadTargetAnnotation), and virt-controller made the DataVolume.
const FillsAnnotation = "kubeqemu.io/fills-claim"

// Fills says whether a DataVolume was made to fill this very claim, which is not its own. virt-controller makes such
// a DataVolume for a claim that asks for an upload, and nothing else makes a DataVolume write to another's claim.
func Fills(volume, claim metav1.Object) bool {
	_, asks := claim.GetAnnotations()[UploadTargetAnnotation]
	return asks && metav1.GetControllerOfNoCopy(claim) == nil && claim.GetName() == volume.GetName() &&
		claim.GetUID() != "" && volume.GetAnnotations()[FillsAnnotation] == string(claim.GetUID())
}
