package v1

import (
	"encoding/base64"
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
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

// CloudInit is the volume's cloud-init seed, of either kind, or nil.
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

// pullPolicy is Kubernetes' default for an image reference.
func pullPolicy(image string) corev1.PullPolicy {
	if hasFixedTag(image) {
		return corev1.PullIfNotPresent
	}
	return corev1.PullAlways
}

// hasFixedTag says whether an image reference has a digest, or a tag other
// than latest.
func hasFixedTag(image string) bool {
	if strings.Contains(image, "@") {
		return true
	}
	last := image[strings.LastIndex(image, "/")+1:]
	_, tag, tagged := strings.Cut(last, ":")
	return tagged && tag != "latest"
}

const sourceRule = "exactly one volume source must be set (supported: containerDisk, persistentVolumeClaim, dataVolume, ephemeral, hostDisk, cloudInitNoCloud, cloudInitConfigDrive, emptyDisk, configMap, secret, downwardAPI, serviceAccount, sysprep)"

func validateVolumes(volumes []Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, v := range volumes {
		p := path.Index(i)
		if seen.Has(v.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), v.Name))
		}
		seen.Insert(v.Name)
		if !diskName.MatchString(v.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), v.Name, "must be a DNS label"))
		}
		errs = append(errs, validateSource(v, p)...)
	}
	return errs
}

func validateSource(v Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	sources := 0
	if cd := v.ContainerDisk; cd != nil {
		sources++
		if cd.Image == "" {
			errs = append(errs, field.Required(path.Child("containerDisk", "image"), "name the container image that holds the disk"))
		}
	}
	if ci := v.CloudInitNoCloud; ci != nil {
		sources++
		errs = append(errs, validateCloudInit(ci, path.Child("cloudInitNoCloud"))...)
	}
	if v.CloudInitConfigDrive != nil {
		sources++
		errs = append(errs, validateCloudInit(v.CloudInit(), path.Child("cloudInitConfigDrive"))...)
	}
	if e := v.EmptyDisk; e != nil {
		sources++
		if e.Capacity.Sign() <= 0 || !within(e.Capacity, 0, maxDiskBytes) {
			errs = append(errs, field.Invalid(path.Child("emptyDisk", "capacity"), e.Capacity.String(), "must be between 1 and 64Ti"))
		}
	}
	if c := v.PersistentVolumeClaim; c != nil {
		sources++
		errs = append(errs, validateClaimSource(c, path.Child("persistentVolumeClaim"))...)
	}
	if d := v.DataVolume; d != nil {
		sources++
		errs = append(errs, validateClaimName(d.Name, path.Child("dataVolume", "name"))...)
	}
	if e := v.Ephemeral; e != nil {
		sources++
		errs = append(errs, validateEphemeral(e, path.Child("ephemeral"))...)
	}
	if h := v.HostDisk; h != nil {
		sources++
		errs = append(errs, validateHostDisk(h, path.Child("hostDisk"))...)
	}
	for _, set := range []bool{v.ConfigMap != nil, v.Secret != nil, v.DownwardAPI != nil, v.ServiceAccount != nil, v.Sysprep != nil} {
		if set {
			sources++
		}
	}
	errs = append(errs, validateConfigVolume(&v, path)...)
	// A source that is refused is reported by its own path.
	if refused := refusedSources(v, path); sources+refused != 1 {
		errs = append(errs, field.Invalid(path, v.Name, sourceRule))
	}
	return errs
}

// refusedSources is the number of the volume's sources that are not supported.
func refusedSources(v Volume, path *field.Path) int {
	v.PersistentVolumeClaim, v.DataVolume, v.Ephemeral = nil, nil, nil // refused fields in these are no sources
	return len(validateUnsupported(reflect.ValueOf(v), path))
}

func validateCloudInit(ci *CloudInitNoCloudSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	check := func(name, secretName, plain, encoded string, secret *corev1.LocalObjectReference) (given int) {
		data, err := CloudInitData(plain, encoded)
		if err != nil {
			errs = append(errs, field.Invalid(path.Child(name+"Base64"), "", err.Error()))
		}
		if len(data) > maxCloudInitBytes {
			at := path.Child(name)
			if encoded != "" {
				at = path.Child(name + "Base64")
			}
			errs = append(errs, field.TooLong(at, "", maxCloudInitBytes))
		}
		if plain != "" {
			given++
		}
		if encoded != "" {
			given++
		}
		if secret != nil {
			given++
			if secret.Name == "" {
				errs = append(errs, field.Required(path.Child(secretName, "name"), "name the Secret"))
			}
		}
		if given > 1 {
			errs = append(errs, field.Invalid(path.Child(name), "", fmt.Sprintf("set only one of %s, %sBase64 and %s", name, name, secretName)))
		}
		return given
	}
	given := check("userData", "secretRef", ci.UserData, ci.UserDataBase64, ci.UserDataSecretRef)
	given += check("networkData", "networkDataSecretRef", ci.NetworkData, ci.NetworkDataBase64, ci.NetworkDataSecretRef)
	if given == 0 {
		errs = append(errs, field.Required(path, "set userData, networkData, their Base64 forms or a Secret"))
	}
	return errs
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

// cloudConfig is the first line of user data that is YAML. Other first lines say that the data is a script, a list of URLs or another format.
const cloudConfig = "#cloud-config"

// warnCloudInit names data that cloud-init cannot read: it starts the guest without. It reads no data that is refused for its
// length: a warning comes before the refusal, and the nodes of YAML take a hundred times the text's memory.
func warnCloudInit(volumes []Volume, path *field.Path) (out []string) {
	for i := range volumes {
		ci, child := volumes[i].CloudInit(), "cloudInitNoCloud"
		if ci == nil {
			continue
		}
		if volumes[i].CloudInitConfigDrive != nil {
			child = "cloudInitConfigDrive"
		}
		user, network, err := ci.Data()
		if err != nil {
			continue // which is refused
		}
		look := func(name string, data []byte) {
			if len(data) > maxCloudInitBytes {
				return
			}
			if err := yaml.Unmarshal(data, &yaml.Node{}); err != nil {
				out = append(out, fmt.Sprintf("%s is no YAML, and cloud-init does not read it: %s", path.Index(i).Child(child, name), firstLine(err.Error())))
			}
		}
		if line, _, _ := strings.Cut(string(user), "\n"); strings.HasPrefix(line, cloudConfig) {
			look("userData", user)
		}
		look("networkData", network)
	}
	return out
}

// firstLine returns a text's first line that says something, as "line 3: ...".
func firstLine(text string) string {
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "yaml: "), "\n")
	return text
}
