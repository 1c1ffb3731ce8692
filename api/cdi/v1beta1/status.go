package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DataVolumeStatus is how far a DataVolume is.
type DataVolumeStatus struct {
	// ClaimName is the name of the claim.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ClaimName string `json:"claimName,omitempty"`
	// Phase of the DataVolume.
	// +optional
	Phase DataVolumePhase `json:"phase,omitempty"`
	// Progress in percent, such as 12.34%, or N/A.
	// +optional
	Progress DataVolumeProgress `json:"progress,omitempty"`
	// RestartCount is how often the import failed and was tried again.
	// +optional
	RestartCount int32 `json:"restartCount,omitempty"`
	// Conditions are Bound, Running and Ready.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Conditions []DataVolumeCondition `json:"conditions,omitempty"`
}

// DataVolumePhase is a phase of a DataVolume.
//
// +kubebuilder:validation:MaxLength=63
type DataVolumePhase string

// Phases of a DataVolume, as far as virt-controller writes or reads them.
const (
	// Pending: the claim is to be made or bound, or the DataVolume is refused. A condition says why.
	Pending DataVolumePhase = "Pending"
	// PVCBound: the claim is bound, and the importer pod is to be made.
	PVCBound DataVolumePhase = "PVCBound"
	// WaitForFirstConsumer: the storage binds the claim when a pod uses it.
	WaitForFirstConsumer DataVolumePhase = "WaitForFirstConsumer"
	// PendingPopulation: the storage fills the claim when a pod uses it.
	PendingPopulation DataVolumePhase = "PendingPopulation"
	// ImportScheduled: the importer pod is made.
	ImportScheduled DataVolumePhase = "ImportScheduled"
	// ImportInProgress: the importer pod has started.
	ImportInProgress DataVolumePhase = "ImportInProgress"
	// CloneScheduled: the pods that copy another claim's disk are made, or wait for that claim.
	CloneScheduled DataVolumePhase = "CloneScheduled"
	// CloneInProgress: the importer pod of a copy has started.
	CloneInProgress DataVolumePhase = "CloneInProgress"
	// CSICloneInProgress: the storage clones another claim.
	CSICloneInProgress DataVolumePhase = "CSICloneInProgress"
	// CloneFromSnapshotSourceInProgress: the storage restores a VolumeSnapshot.
	CloneFromSnapshotSourceInProgress DataVolumePhase = "CloneFromSnapshotSourceInProgress"
	// UploadScheduled: the importer pod is made, for an upload.
	UploadScheduled DataVolumePhase = "UploadScheduled"
	// UploadReady: the importer takes an image, or is taking one.
	UploadReady DataVolumePhase = "UploadReady"
	// Succeeded: the disk may be used.
	Succeeded DataVolumePhase = "Succeeded"
	// Failed: nothing is tried any more.
	Failed DataVolumePhase = "Failed"
)

// DataVolumeProgress is a percentage or N/A.
//
// +kubebuilder:validation:MaxLength=63
type DataVolumeProgress string

// Progresses that are no measure.
const (
	ProgressUnknown DataVolumeProgress = "N/A"
	ProgressDone    DataVolumeProgress = "100.0%"
)

// DataVolumeConditionType is the type of a condition of a DataVolume.
//
// +kubebuilder:validation:MaxLength=63
type DataVolumeConditionType string

// Conditions of a DataVolume.
const (
	// Ready: the disk may be used.
	Ready DataVolumeConditionType = "Ready"
	// Bound: the claim is bound.
	Bound DataVolumeConditionType = "Bound"
	// Running: the importer runs.
	Running DataVolumeConditionType = "Running"
)

// DataVolumeCondition is one condition of a DataVolume.
type DataVolumeCondition struct {
	// Type is Bound, Running or Ready.
	Type DataVolumeConditionType `json:"type"`
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

// Condition returns the condition of a type, or nil.
func (s *DataVolumeStatus) Condition(of DataVolumeConditionType) *DataVolumeCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == of {
			return &s.Conditions[i]
		}
	}
	return nil
}

// SetCondition sets a condition, and its times if it changed.
func (s *DataVolumeStatus) SetCondition(c DataVolumeCondition, now metav1.Time) {
	old := s.Condition(c.Type)
	if old == nil {
		c.LastTransitionTime, c.LastHeartbeatTime = now, now
		s.Conditions = append(s.Conditions, c)
		return
	}
	c.LastTransitionTime, c.LastHeartbeatTime = old.LastTransitionTime, old.LastHeartbeatTime
	if c.Status != old.Status {
		c.LastTransitionTime = now
	}
	if c.Status != old.Status || c.Reason != old.Reason || c.Message != old.Message {
		c.LastHeartbeatTime = now
	}
	*old = c
}
