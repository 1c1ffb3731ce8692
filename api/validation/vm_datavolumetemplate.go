package validation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func validateDataVolumeTemplates(vm *v1.VirtualMachine, path *field.Path) field.ErrorList {
	templates := vm.Spec.DataVolumeTemplates
	if len(templates) > v1.MaxDataVolumeTemplates {
		return field.ErrorList{field.TooMany(path, len(templates), v1.MaxDataVolumeTemplates)}
	}
	size := 0
	for i := range templates {
		size += templateSize(&templates[i])
	}
	if size > v1.MaxDataVolumeTemplatesBytes {
		return field.ErrorList{field.TooLong(path, "", v1.MaxDataVolumeTemplatesBytes)}
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range templates {
		t, at := &templates[i], path.Index(i)
		name := t.ObjectMeta.Name
		errs = append(errs, validateDataVolumeTemplate(t, vm.Namespace, at)...)
		switch {
		case name == "":
		case len(utilvalidation.IsDNS1123Subdomain(name)) > 0:
			errs = append(errs, validateClaimName(name, at.Child("metadata", "name"))...)
		case seen[name]:
			errs = append(errs, field.Duplicate(at.Child("metadata", "name"), name))
		case !slices.ContainsFunc(vm.Spec.Template.Spec.Volumes, func(v v1.Volume) bool { return namesDataVolume(&v, name) }):
			errs = append(errs, field.Invalid(at.Child("metadata", "name"), name,
				"no volume of spec.template.spec.volumes names it: add one with dataVolume or persistentVolumeClaim"))
		}
		seen[name] = true
	}
	return InOrder(errs)
}

// namesDataVolume reports whether the volume is the writable disk of a DataVolume.
func namesDataVolume(v *v1.Volume, dataVolume string) bool {
	return v.DataVolume != nil && v.DataVolume.Name == dataVolume ||
		v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == dataVolume
}

// templateSize returns the template's size in bytes.
func templateSize(t *v1.DataVolumeTemplate) int {
	size := len(t.Spec.Raw)
	for _, more := range []map[string]string{t.ObjectMeta.Labels, t.ObjectMeta.Annotations} {
		for key, value := range more {
			size += len(key) + len(value)
		}
	}
	return size
}

// validateDataVolumeTemplate checks a template for a VM of the namespace. An empty namespace is not known yet.
func validateDataVolumeTemplate(t *v1.DataVolumeTemplate, namespace string, path *field.Path) field.ErrorList {
	if templateSize(t) > v1.MaxDataVolumeTemplateBytes {
		return field.ErrorList{field.TooLong(path, "", v1.MaxDataVolumeTemplateBytes)}
	}
	m, meta := &t.ObjectMeta, path.Child("metadata")
	var errs field.ErrorList
	if m.Name == "" {
		errs = append(errs, field.Required(meta.Child("name"), "a volume refers to it"))
	}
	if m.GenerateName != "" {
		errs = append(errs, field.Forbidden(meta.Child("generateName"), "a volume refers to the name: set name"))
	}
	if m.Namespace != "" && namespace != "" && m.Namespace != namespace {
		errs = append(errs, field.Invalid(meta.Child("namespace"), m.Namespace, "must be the VirtualMachine's, "+namespace))
	}
	errs = append(errs, metav1validation.ValidateLabels(m.Labels, meta.Child("labels"))...)
	errs = append(errs, apivalidation.ValidateAnnotations(m.Annotations, meta.Child("annotations"))...)
	fields, err := t.Fields()
	if err != nil || fields == nil {
		return append(errs, field.Required(path.Child("spec"), "must be the spec of a DataVolume"))
	}
	return append(errs, (&dataVolumeFields{fields, namespace}).validate(path.Child("spec"))...)
}

// dataVolumeFields are the spec of a DataVolume of a namespace.
type dataVolumeFields struct {
	fields    map[string]any
	namespace string
}

// dataVolumeSources are CDI's kinds of sources. virt-controller may clone from any namespace, and
// checks the rights for the two kinds that name a namespace. So it passes on no kind that it does
// not know: the kind could name a namespace too.
var dataVolumeSources = []string{"blank", "gcs", "http", "imageio", "pvc", "registry", "s3", "snapshot", "upload",
	"vddk"}

func (f *dataVolumeFields) validate(path *field.Path) field.ErrorList {
	if errs := validateCase(f.fields, path, "source", "sourceRef", "storage", "pvc"); len(errs) > 0 {
		return errs
	}
	errs, populated := f.validateClaim(path)
	_, source := f.fields["source"]
	_, ref := f.fields["sourceRef"]
	switch {
	case populated && (source || ref):
		return append(errs, field.Forbidden(path.Child("source"), "the claim has a dataSource or dataSourceRef already"))
	case source && ref:
		return append(errs, field.Forbidden(path.Child("sourceRef"), "source and sourceRef exclude each other"))
	case source:
		return append(errs, f.validateSource(path.Child("source"))...)
	case ref:
		return append(errs, f.validateRef(path.Child("sourceRef"))...)
	case !populated:
		return append(errs, field.Required(path.Child("source"),
			"set source or sourceRef, or a dataSource or dataSourceRef of the claim"))
	}
	return errs
}

// validateClaim validates storage or pvc. populated means that something else than CDI fills the
// claim.
func (f *dataVolumeFields) validateClaim(path *field.Path) (errs field.ErrorList, populated bool) {
	_, pvc := f.fields["pvc"]
	_, storage := f.fields["storage"]
	switch {
	case pvc && storage:
		return field.ErrorList{field.Forbidden(path.Child("pvc"), "pvc and storage exclude each other")}, false
	case !pvc && !storage:
		return field.ErrorList{field.Required(path.Child("storage"), "set storage or pvc")}, false
	}
	name := "storage"
	if pvc {
		name = "pvc"
	}
	path = path.Child(name)
	claim, ok := f.fields[name].(map[string]any)
	if !ok {
		return field.ErrorList{field.TypeInvalid(path, f.fields[name], "must be an object")}, false
	}
	errs = validateCase(claim, path, "dataSource", "dataSourceRef")
	populated = claim["dataSource"] != nil || claim["dataSourceRef"] != nil
	if claim["dataSourceRef"] == nil {
		return errs, populated
	}
	ref, ok := claim["dataSourceRef"].(map[string]any)
	if !ok {
		return append(errs, field.TypeInvalid(path.Child("dataSourceRef"), claim["dataSourceRef"], "must be an object")), true
	}
	errs = append(errs, validateCase(ref, path.Child("dataSourceRef"), "namespace")...)
	if n := ref["namespace"]; n != nil && n != "" && n != f.namespace {
		errs = append(errs, field.Forbidden(path.Child("dataSourceRef", "namespace"),
			"only the VirtualMachine's own namespace is supported"))
	}
	return errs, true
}

func (f *dataVolumeFields) validateSource(path *field.Path) field.ErrorList {
	source, ok := f.fields["source"].(map[string]any)
	if !ok || len(source) != 1 {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{},
			fmt.Sprintf("must have exactly one of %v", dataVolumeSources))}
	}
	for kind, value := range source {
		of, ok := value.(map[string]any)
		switch {
		case !slices.Contains(dataVolumeSources, kind):
			return field.ErrorList{field.NotSupported(path, kind, dataVolumeSources)}
		case !ok:
			return field.ErrorList{field.TypeInvalid(path.Child(kind), value, "must be an object")}
		case kind == "pvc" || kind == "snapshot":
			return validateReference(of, path.Child(kind))
		}
	}
	return nil
}

func (f *dataVolumeFields) validateRef(path *field.Path) field.ErrorList {
	ref, ok := f.fields["sourceRef"].(map[string]any)
	if !ok {
		return field.ErrorList{field.TypeInvalid(path, f.fields["sourceRef"], "must be an object")}
	}
	errs := validateReference(ref, path)
	if ref["kind"] != "DataSource" {
		errs = append(errs, field.NotSupported(path.Child("kind"), fmt.Sprint(ref["kind"]), []string{"DataSource"}))
	}
	return errs
}

// validateReference validates name and namespace of another object. Both become a part of
// a request's path.
func validateReference(ref map[string]any, path *field.Path) field.ErrorList {
	errs := validateCase(ref, path, "name", "namespace", "kind")
	name, ok := ref["name"].(string)
	if !ok || name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	} else if messages := utilvalidation.IsDNS1123Subdomain(name); len(messages) > 0 {
		errs = append(errs, field.Invalid(path.Child("name"), name, messages[0]))
	}
	if ref["namespace"] == nil || ref["namespace"] == "" {
		return errs
	}
	namespace, ok := ref["namespace"].(string)
	if messages := utilvalidation.IsDNS1123Label(namespace); !ok || len(messages) > 0 {
		errs = append(errs, field.Invalid(path.Child("namespace"), ref["namespace"], "must be the name of a namespace"))
	}
	return errs
}

// validateCase refuses fields that differ from one of the names by case alone: Go's JSON decoder
// would read such a field as the name.
func validateCase(fields map[string]any, path *field.Path, names ...string) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		for _, name := range names {
			if key != name && strings.EqualFold(key, name) {
				errs = append(errs, field.Forbidden(path.Child(key), "write it as "+name))
			}
		}
	}
	return errs
}
