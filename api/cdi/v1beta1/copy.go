package v1beta1

import (
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// Copies says whether the disk is another claim's or a VolumeSnapshot's.
func (s *DataVolumeSpec) Copies() bool {
	return s.SourceRef != nil || s.Source != nil && (s.Source.PVC != nil || s.Source.Snapshot != nil)
}

func (s *DataVolumeSourcePVC) validate(path *field.Path) field.ErrorList {
	return validateName(path, s.Namespace, s.Name)
}

func (s *DataVolumeSourceSnapshot) validate(path *field.Path) field.ErrorList {
	return validateName(path, s.Namespace, s.Name)
}

func (r *DataVolumeSourceRef) validate(path *field.Path) (errs field.ErrorList) {
	if r.Kind != DataSourceKind {
		errs = append(errs, field.NotSupported(path.Child("kind"), r.Kind, []string{DataSourceKind}))
	}
	return append(errs, validateName(path, ptr.Deref(r.Namespace, ""), r.Name)...)
}

// Validate returns what keeps a DataSource from naming a source.
func (s *DataSourceSource) Validate(path *field.Path) field.ErrorList {
	switch {
	case s.PVC != nil:
		return s.PVC.validate(path.Child("pvc"))
	case s.DataSource != nil:
		return validateName(path.Child("dataSource"), s.DataSource.Namespace, s.DataSource.Name)
	case s.Snapshot != nil:
		return s.Snapshot.validate(path.Child("snapshot"))
	}
	return field.ErrorList{field.Required(path, "set pvc, snapshot or dataSource")}
}

// validateName checks the name of an object, and its namespace: empty is the namespace of the object
// that names it.
func validateName(path *field.Path, namespace, name string) (errs field.ErrorList) {
	if namespace != "" {
		for _, wrong := range validation.IsDNS1123Label(namespace) {
			errs = append(errs, field.Invalid(path.Child("namespace"), namespace, wrong))
		}
	}
	for _, wrong := range validation.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(path.Child("name"), name, wrong))
	}
	return errs
}
