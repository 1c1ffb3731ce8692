package v1

import (
	"encoding/base64"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Volume is where the content of a disk or of a file system comes from. Exactly one source is set.
//
// +kubebuilder:validation:XValidation:rule="[has(self.containerDisk), has(self.cloudInitNoCloud), has(self.emptyDisk), has(self.persistentVolumeClaim), has(self.dataVolume), has(self.ephemeral), has(self.hostDisk), has(self.cloudInitConfigDrive), has(self.configMap), has(self.secret), has(self.downwardAPI), has(self.serviceAccount), has(self.sysprep), has(self.downwardMetrics), has(self.memoryDump), has(self.containerPath)].filter(b, b).size() == 1",message="exactly one volume source must be set (supported: containerDisk, persistentVolumeClaim, dataVolume, ephemeral, hostDisk, cloudInitNoCloud, cloudInitConfigDrive, emptyDisk, configMap, secret, downwardAPI, serviceAccount, sysprep)"
type Volume struct {
	// Name of the volume; a disk or a file system refers to it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// ContainerDisk is a disk image in a container image. Writes go to an
	// overlay that ends with the VMI.
	// +optional
	ContainerDisk *ContainerDiskSource `json:"containerDisk,omitempty"`
	// CloudInitNoCloud is a cloud-init NoCloud seed.
	// +optional
	CloudInitNoCloud *CloudInitNoCloudSource `json:"cloudInitNoCloud,omitempty"`
	// CloudInitConfigDrive is a cloud-init ConfigDrive seed, in OpenStack's layout.
	// +optional
	CloudInitConfigDrive *CloudInitConfigDriveSource `json:"cloudInitConfigDrive,omitempty"`
	// EmptyDisk is an empty disk that ends with the VMI.
	// +optional
	EmptyDisk *EmptyDiskSource `json:"emptyDisk,omitempty"`
	// PersistentVolumeClaim is a disk that outlives the VMI.
	// +optional
	PersistentVolumeClaim *PersistentVolumeClaimVolumeSource `json:"persistentVolumeClaim,omitempty"`
	// DataVolume is a disk that outlives the VMI: the disk on the claim of the DataVolume's name. CDI fills the
	// disk, or Kubeqemu itself (config/datavolumes).
	// +optional
	DataVolume *DataVolumeSource `json:"dataVolume,omitempty"`
	// Ephemeral only reads a disk on a claim. Writes go to an overlay that ends with the VMI.
	// +optional
	Ephemeral *EphemeralVolumeSource `json:"ephemeral,omitempty"`
	// HostDisk is a raw disk in a file of the node. Refused unless the KubeVirt's
	// hostDisk.folders permit it (KubeVirt: the feature gate HostDisk).
	// +optional
	HostDisk *HostDisk `json:"hostDisk,omitempty"`
	// ConfigMap is a disk with the entries of a ConfigMap as files, as they are when the VMI starts.
	// +optional
	ConfigMap *ConfigMapVolumeSource `json:"configMap,omitempty"`
	// Secret is a disk with the entries of a Secret as files, as they are when the VMI starts.
	// +optional
	Secret *SecretVolumeSource `json:"secret,omitempty"`
	// DownwardAPI is a disk with facts about the launcher pod as files, as they are when the VMI starts.
	// +optional
	DownwardAPI *DownwardAPIVolumeSource `json:"downwardAPI,omitempty"`
	// ServiceAccount is a disk with a token of a service account. At most one volume may be one.
	// +optional
	ServiceAccount *ServiceAccountVolumeSource `json:"serviceAccount,omitempty"`
	// Sysprep is a disk with Windows' answer files.
	// +optional
	Sysprep *SysprepSource `json:"sysprep,omitempty"`

	// DownwardMetrics is refused: not supported yet: the node's metrics are not gathered yet.
	// +optional
	DownwardMetrics *Unsupported `json:"downwardMetrics,omitempty" later:"the node's metrics are not gathered yet"`
	// MemoryDump is refused: not supported yet: there is no hotplug, and a dump is written to such a volume.
	// +optional
	MemoryDump *Unsupported `json:"memoryDump,omitempty" later:"there is no hotplug, and a dump is written to such a volume"`
	// ContainerPath is never supported: a path of the launcher's container has nothing for a guest.
	// +optional
	ContainerPath *Never `json:"containerPath,omitempty" never:"in KubeVirt it is Alpha, and shares what a webhook has put into the launcher's container; share a configMap, secret, serviceAccount, downwardAPI or persistentVolumeClaim"`
}

// ContainerDiskSource is a disk image (qcow2 or raw) in a container image.
type ContainerDiskSource struct {
	// Image is the container image's reference.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image"`
	// Path of the disk in the container image. Default: the only file in /disk.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path,omitempty"`
	// ImagePullPolicy as for containers. Default: Always for the tag latest
	// or none, else IfNotPresent.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// ImagePullSecret is a Secret of the namespace with registry credentials.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ImagePullSecret string `json:"imagePullSecret,omitempty"`
}

// EmptyDiskSource is an empty disk.
type EmptyDiskSource struct {
	// Capacity is the disk's size, 64Ti at most, rounded up to 512 bytes. The guest's
	// writes take room on the node, up to this size. Exponents are refused.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9.]{1,20}([KMGTPE]i?|[numk])?$`
	Capacity resource.Quantity `json:"capacity"`
}

// CloudInitNoCloudSource is a cloud-init NoCloud seed. User and network data
// may each be given once: as plain text, in base64, or in a Secret. Inline, at
// most 2048 bytes each.
type CloudInitNoCloudSource struct {
	// UserDataSecretRef names a Secret of the namespace whose key "userdata"
	// holds the user data.
	// +optional
	UserDataSecretRef *corev1.LocalObjectReference `json:"secretRef,omitempty"`
	// UserDataBase64 is userData in base64.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	UserDataBase64 string `json:"userDataBase64,omitempty"`
	// UserData is cloud-init's user data, at most 2048 bytes.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	UserData string `json:"userData,omitempty"`
	// NetworkDataSecretRef names a Secret of the namespace whose key
	// "networkdata" holds the network data.
	// +optional
	NetworkDataSecretRef *corev1.LocalObjectReference `json:"networkDataSecretRef,omitempty"`
	// NetworkDataBase64 is networkData in base64.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	NetworkDataBase64 string `json:"networkDataBase64,omitempty"`
	// NetworkData is cloud-init's network configuration, at most 2048 bytes.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	NetworkData string `json:"networkData,omitempty"`
}

// CloudInitConfigDriveSource is a cloud-init ConfigDrive seed: a volume with the label
// config-2. The network data must be JSON in OpenStack's format; it is written to
// network_data.json as it is. All else is as for a NoCloud seed.
type CloudInitConfigDriveSource CloudInitNoCloudSource

// CloudInit returns the volume's cloud-init seed, of either kind, or nil.
func (v *Volume) CloudInit() *CloudInitNoCloudSource {
	if v.CloudInitConfigDrive != nil {
		return (*CloudInitNoCloudSource)(v.CloudInitConfigDrive)
	}
	return v.CloudInitNoCloud
}

func defaultVolumes(spec *VirtualMachineInstanceSpec) {
	for i := range spec.Volumes {
		if cd := spec.Volumes[i].ContainerDisk; cd != nil && cd.ImagePullPolicy == "" {
			cd.ImagePullPolicy = pullPolicy(cd.Image)
		}
	}
}

// pullPolicy returns Kubernetes' default for an image reference.
func pullPolicy(image string) corev1.PullPolicy {
	if hasFixedTag(image) {
		return corev1.PullIfNotPresent
	}
	return corev1.PullAlways
}

// hasFixedTag reports whether an image reference has a digest, or a tag other
// than latest.
func hasFixedTag(image string) bool {
	if strings.Contains(image, "@") {
		return true
	}
	last := image[strings.LastIndex(image, "/")+1:]
	_, tag, tagged := strings.Cut(last, ":")
	return tagged && tag != "latest"
}

// CloudInitData returns data that is given as it is, or in Base64.
func CloudInitData(plain, encoded string) ([]byte, error) {
	if encoded == "" {
		return []byte(plain), nil
	}
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, fmt.Errorf("decode base64: %w", err)
	}
	return data, nil
}

// Data returns the user and network data that the spec itself holds.
func (ci *CloudInitNoCloudSource) Data() (user, network []byte, err error) {
	if user, err = CloudInitData(ci.UserData, ci.UserDataBase64); err != nil {
		return nil, nil, err
	}
	network, err = CloudInitData(ci.NetworkData, ci.NetworkDataBase64)
	return user, network, err
}
