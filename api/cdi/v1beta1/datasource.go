package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DataSource names what DataVolumes are filled from. virt-controller reads it, and writes no status.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=datasources,shortName=das,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/managed-by=kubeqemu"
type DataSource struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec names the source.
	Spec DataSourceSpec `json:"spec"`
	// Status of a DataSource that CDI followed.
	// +optional
	Status DataSourceStatus `json:"status,omitempty"`
}

// DataSourceList is a list of DataSources.
//
// +kubebuilder:object:root=true
type DataSourceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DataSource `json:"items"`
}

// DataSourceSpec names the source.
type DataSourceSpec struct {
	// Source is a claim, a VolumeSnapshot or another DataSource.
	Source DataSourceSource `json:"source"`
}

// DataSourceSource is a source. At most one field is set.
//
// +kubebuilder:validation:MaxProperties=1
type DataSourceSource struct {
	// PVC is a claim.
	// +optional
	PVC *DataVolumeSourcePVC `json:"pvc,omitempty"`
	// Snapshot is a VolumeSnapshot.
	// +optional
	Snapshot *DataVolumeSourceSnapshot `json:"snapshot,omitempty"`
	// DataSource is another DataSource of the namespace.
	// +optional
	DataSource *DataSourceRefSourceDataSource `json:"dataSource,omitempty"`
}

// DataSourceRefSourceDataSource is another DataSource.
type DataSourceRefSourceDataSource struct {
	// Namespace of the DataSource. Empty is that of the DataSource that names it.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name of the DataSource.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// DataSourceStatus is what CDI found.
type DataSourceStatus struct {
	// Source that the DataSource leads to.
	// +optional
	Source DataSourceSource `json:"source,omitempty"`
	// Conditions of the DataSource.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Conditions []DataSourceCondition `json:"conditions,omitempty"`
}

// DataSourceCondition is one condition of a DataSource.
type DataSourceCondition struct {
	// Type of the condition, such as Ready.
	// +kubebuilder:validation:MaxLength=63
	Type string `json:"type"`
	// Status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// LastTransitionTime is when Status changed.
	// +optional
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// LastHeartbeatTime is when the condition changed.
	// +optional
	// +nullable
	LastHeartbeatTime metav1.Time `json:"lastHeartbeatTime,omitempty"`
	// Reason is a word for programs.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
	// Message is for people.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Message string `json:"message,omitempty"`
}
