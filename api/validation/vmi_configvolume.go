package validation

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

var (
	// configLabel is the schema's pattern too.
	configLabel = regexp.MustCompile(`^[A-Za-z0-9._-]{0,32}$`)
	// fileName is what an entry of a ConfigMap may be called, and what the launcher can write into a disk.
	fileName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,253}$`)
	// podField are the fields that a pod's downward API has for volumes.
	podField = regexp.MustCompile(
		`^metadata\.(name|namespace|uid|labels|annotations|(labels|annotations)\['([^']{1,317})'\])$`)
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
func validateConfigVolume(v *v1.Volume, path *field.Path) field.ErrorList {
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
				fmt.Sprintf("must be a file, in at most %d folders; names are of letters, digits and . _ -, and the first does "+
					"not begin with ..", maxFolders)))
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
		if m := podField.FindStringSubmatch(r.FieldPath); m == nil || m[3] != "" &&
			len(utilvalidation.IsQualifiedName(m[3])) > 0 {
			errs = append(errs, field.Invalid(path.Child("fieldRef", "fieldPath"), r.FieldPath,
				"must be metadata.name, .namespace, .uid, .labels, .annotations, .labels['KEY'] or .annotations['KEY'], of the "+
					"launcher pod, which has the VMI's labels and annotations"))
		}
	}
	if r := f.ResourceFieldRef; r != nil {
		at := path.Child("resourceFieldRef")
		if r.ContainerName != launcherContainer {
			errs = append(errs, field.NotSupported(at.Child("containerName"), r.ContainerName, []string{launcherContainer}))
		}
		errs = append(errs, oneOf(r.Resource, at.Child("resource"), "limits.cpu", "limits.memory", "limits.ephemeral-storage",
			"requests.cpu", "requests.memory", "requests.ephemeral-storage")...)
	}
	return errs
}

// validateServiceAccounts refuses a second service account: a pod has one.
func validateServiceAccounts(spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	before := spec.ServiceAccountName
	for i, v := range spec.Volumes {
		if v.ServiceAccount == nil {
			continue
		}
		at := path.Child("volumes").Index(i).Child("serviceAccount", "serviceAccountName")
		if i := slices.IndexFunc(spec.Volumes[:i], func(v v1.Volume) bool { return v.ServiceAccount != nil }); i >= 0 {
			errs = append(errs, field.Forbidden(at,
				fmt.Sprintf("only one volume may be a service account, and %s is", spec.Volumes[i].Name)))
		} else if name := v.ServiceAccount.ServiceAccountName; before != "" && name != before {
			errs = append(errs, field.Invalid(at, name, "a pod has one service account, and spec.serviceAccountName is "+before))
		}
	}
	return errs
}
