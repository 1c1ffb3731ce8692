package v1

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
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

// IsConfig says whether the volume is a disk that the launcher makes of files: of a ConfigMap, a Secret, the
// downward API, a service account, or of Windows' answer files.
func (v *Volume) IsConfig() bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.ServiceAccount != nil || v.Sysprep != nil
}

// ConfigLabel is the label of a config volume's file system.
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

// PodServiceAccount is the service account of the launcher pod; empty is the namespace's default.
func (spec *VirtualMachineInstanceSpec) PodServiceAccount() string {
	for _, v := range spec.Volumes {
		if v.ServiceAccount != nil {
			return v.ServiceAccount.ServiceAccountName
		}
	}
	return spec.ServiceAccountName
}

var (
	// configLabel is the schema's pattern too.
	configLabel = regexp.MustCompile(`^[A-Za-z0-9._-]{0,32}$`)
	// fileName is what an entry of a ConfigMap may be called, and what the launcher can write into a disk.
	fileName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,253}$`)
	// podField are the fields that a pod's downward API has for volumes.
	podField = regexp.MustCompile(`^metadata\.(name|namespace|uid|labels|annotations|(labels|annotations)\['([^']{1,317})'\])$`)
)

const (
	configLabelRule = "must be at most 32 letters, digits and . _ -"
	// launcherContainer is the container of the launcher pod whose resources the downward API may show.
	launcherContainer = "compute"
	maxFields         = 64
	// maxFolders is how deep the folders are that the launcher can write into a disk.
	maxFolders = 6
)

// validateConfigVolume checks the source of a config volume.
func validateConfigVolume(v *Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	name := func(p *field.Path, name, kind string) {
		if name == "" {
			errs = append(errs, field.Required(p, "name the "+kind))
			return
		}
		for _, message := range validation.NameIsDNSSubdomain(name, false) {
			errs = append(errs, field.Invalid(p, name, message))
		}
	}
	label := func(p *field.Path, label string) {
		if !configLabel.MatchString(label) {
			errs = append(errs, field.Invalid(p.Child("volumeLabel"), label, configLabelRule))
		}
	}
	if c := v.ConfigMap; c != nil {
		name(path.Child("configMap", "name"), c.Name, "ConfigMap")
		label(path.Child("configMap"), c.VolumeLabel)
	}
	if s := v.Secret; s != nil {
		name(path.Child("secret", "secretName"), s.SecretName, "Secret")
		label(path.Child("secret"), s.VolumeLabel)
	}
	if d := v.DownwardAPI; d != nil {
		errs = append(errs, validateFields(d.Fields, path.Child("downwardAPI", "fields"))...)
		label(path.Child("downwardAPI"), d.VolumeLabel)
	}
	if a := v.ServiceAccount; a != nil {
		name(path.Child("serviceAccount", "serviceAccountName"), a.ServiceAccountName, "service account")
	}
	if s := v.Sysprep; s != nil {
		at := path.Child("sysprep")
		if (s.Secret == nil) == (s.ConfigMap == nil) {
			errs = append(errs, field.Invalid(at, v.Name, "set either secret or configMap"))
		}
		if s.Secret != nil {
			name(at.Child("secret", "name"), s.Secret.Name, "Secret")
		}
		if s.ConfigMap != nil {
			name(at.Child("configMap", "name"), s.ConfigMap.Name, "ConfigMap")
		}
	}
	return errs
}

// validateFields checks the files of the downward API. The API server would refuse the pod otherwise, or the
// launcher the files.
func validateFields(fields []corev1.DownwardAPIVolumeFile, path *field.Path) field.ErrorList {
	if len(fields) > maxFields {
		return field.ErrorList{field.TooMany(path, len(fields), maxFields)}
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, f := range fields {
		p := path.Index(i)
		parts := strings.Split(f.Path, "/")
		switch {
		case f.Path == "":
			errs = append(errs, field.Required(p.Child("path"), "name the file"))
		case len(parts) > maxFolders+1, strings.HasPrefix(f.Path, ".."),
			slices.ContainsFunc(parts, func(s string) bool { return !fileName.MatchString(s) || s == "." || s == ".." }):
			errs = append(errs, field.Invalid(p.Child("path"), f.Path,
				fmt.Sprintf("must be a file, in at most %d folders; names are of letters, digits and . _ -, and the first does not begin with ..", maxFolders)))
		case seen.Has(f.Path):
			errs = append(errs, field.Duplicate(p.Child("path"), f.Path))
		}
		seen.Insert(f.Path)
		errs = append(errs, validateField(&f, p)...)
	}
	return errs
}

func validateField(f *corev1.DownwardAPIVolumeFile, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if (f.FieldRef == nil) == (f.ResourceFieldRef == nil) {
		errs = append(errs, field.Invalid(path, f.Path, "set either fieldRef or resourceFieldRef"))
	}
	if r := f.FieldRef; r != nil {
		if r.APIVersion != "" && r.APIVersion != "v1" {
			errs = append(errs, field.NotSupported(path.Child("fieldRef", "apiVersion"), r.APIVersion, []string{"v1"}))
		}
		if m := podField.FindStringSubmatch(r.FieldPath); m == nil || m[3] != "" && len(utilvalidation.IsQualifiedName(m[3])) > 0 {
			errs = append(errs, field.Invalid(path.Child("fieldRef", "fieldPath"), r.FieldPath,
				"must be metadata.name, .namespace, .uid, .labels, .annotations, .labels['KEY'] or .annotations['KEY'], of the launcher pod, which has the VMI's labels and annotations"))
		}
	}
	if r := f.ResourceFieldRef; r != nil {
		at := path.Child("resourceFieldRef")
		if r.ContainerName != launcherContainer {
			errs = append(errs, field.NotSupported(at.Child("containerName"), r.ContainerName, []string{launcherContainer}))
		}
		errs = append(errs, oneOf(r.Resource, at.Child("resource"), "limits.cpu", "limits.memory", "limits.ephemeral-storage", "requests.cpu", "requests.memory", "requests.ephemeral-storage")...)
	}
	return errs
}

// validateServiceAccounts refuses a second service account: a pod has one.
func validateServiceAccounts(spec *VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	before := spec.ServiceAccountName
	for i, v := range spec.Volumes {
		if v.ServiceAccount == nil {
			continue
		}
		at := path.Child("volumes").Index(i).Child("serviceAccount", "serviceAccountName")
		if i := slices.IndexFunc(spec.Volumes[:i], func(v Volume) bool { return v.ServiceAccount != nil }); i >= 0 {
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("only one volume may be a service account, and %s is", spec.Volumes[i].Name)))
		} else if name := v.ServiceAccount.ServiceAccountName; before != "" && name != before {
			errs = append(errs, field.Invalid(at, name, "a pod has one service account, and spec.serviceAccountName is "+before))
		}
	}
	return errs
}
