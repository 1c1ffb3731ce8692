package v1

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
)

// ConfigMapVolumeSource is a disk with the entries of a ConfigMap as files.
type ConfigMapVolumeSource struct {
	// Name of the ConfigMap, in the VMI's namespace.
	corev1.LocalObjectReference `json:",inline"`
	// Optional: the guest starts without the ConfigMap too, and the disk is empty then. Default: false.
	// +optional
	Optional *bool `json:"optional,omitempty"`
	// VolumeLabel of the disk's file system. Default: cfgdata.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._-]*$`
	VolumeLabel string `json:"volumeLabel,omitempty"`
}

// SecretVolumeSource is a disk with the entries of a Secret as files.
type SecretVolumeSource struct {
	// SecretName is the name of the Secret, in the VMI's namespace.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SecretName string `json:"secretName,omitempty"`
	// Optional: the guest starts without the Secret too, and the disk is empty then. Default: false.
	// +optional
	Optional *bool `json:"optional,omitempty"`
	// VolumeLabel of the disk's file system. Default: cfgdata.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._-]*$`
	VolumeLabel string `json:"volumeLabel,omitempty"`
}

// DownwardAPIVolumeSource is a disk with facts about the launcher pod as files. The pod has the VMI's
// labels and annotations.
type DownwardAPIVolumeSource struct {
	// Fields are the files.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Fields []corev1.DownwardAPIVolumeFile `json:"fields,omitempty"`
	// VolumeLabel of the disk's file system. Default: cfgdata.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._-]*$`
	VolumeLabel string `json:"volumeLabel,omitempty"`
}

// ServiceAccountVolumeSource is a disk with a service account's token, the cluster's CA and the
// namespace, in the files token, ca.crt and namespace. The disk's label is cfgdata.
type ServiceAccountVolumeSource struct {
	// ServiceAccountName is the service account, in the VMI's namespace. The launcher pod has this service account.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
}

// SysprepSource is a disk with Windows' answer files, the entries of a Secret or of a ConfigMap. One
// of the entries is called autounattend.xml or unattend.xml, in any case. The disk's label is unattendCD.
type SysprepSource struct {
	// Secret with the answer files.
	// +optional
	Secret *corev1.LocalObjectReference `json:"secret,omitempty"`
	// ConfigMap with the answer files.
	// +optional
	ConfigMap *corev1.LocalObjectReference `json:"configMap,omitempty"`
}

// Labels of config volumes, KubeVirt's.
const (
	defaultConfigLabel = "cfgdata"
	sysprepLabel       = "unattendCD"
)

// IsConfig reports whether the volume is a disk that the launcher makes of files: of a ConfigMap, a Secret, the
// downward API, a service account, or of Windows' answer files.
func (v *Volume) IsConfig() bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.ServiceAccount != nil || v.Sysprep != nil
}

// ConfigLabel returns the label of a config volume's file system.
func (v *Volume) ConfigLabel() string {
	label := ""
	switch {
	case v.ConfigMap != nil:
		label = v.ConfigMap.VolumeLabel
	case v.Secret != nil:
		label = v.Secret.VolumeLabel
	case v.DownwardAPI != nil:
		label = v.DownwardAPI.VolumeLabel
	case v.Sysprep != nil:
		label = sysprepLabel
	}
	return cmp.Or(label, defaultConfigLabel)
}

// PodServiceAccount returns the service account of the launcher pod; empty is the namespace's default.
func (spec *VirtualMachineInstanceSpec) PodServiceAccount() string {
	for _, v := range spec.Volumes {
		if v.ServiceAccount != nil {
			return v.ServiceAccount.ServiceAccountName
		}
	}
	return spec.ServiceAccountName
}
