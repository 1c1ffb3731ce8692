package v1

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The types below stand for fields of KubeVirt that would change what the guest sees and that
// Kubeqemu does not have yet. They are declared only to be refused by their path: for clients
// without strict validation, the API server would otherwise drop the fields in silence.

const notSupported = "not supported yet"

// Unsupported is a field of KubeVirt that is refused.
//
// +kubebuilder:pruning:PreserveUnknownFields
// +kubebuilder:validation:XValidation:rule="false",message="not supported yet"
type Unsupported struct{}

// Never is a field of KubeVirt that is refused, and will be. The field's tag never says why.
//
// +kubebuilder:pruning:PreserveUnknownFields
// +kubebuilder:validation:XValidation:rule="false",message="never supported; kubectl explain says why"
type Never struct{}

// NeverBool is a switch of KubeVirt that may only be off, and always will. The field's tag never says why.
//
// +kubebuilder:validation:XValidation:rule="!self",message="never supported; kubectl explain says why"
type NeverBool bool

// neverTag is the tag that says why a field is never supported, and laterTag says why one is not supported yet.
const (
	neverTag = "never"
	laterTag = "later"
)

// UnsupportedList is a list of KubeVirt that may only be empty.
//
// +listType=atomic
// +kubebuilder:validation:MaxItems=256
// +kubebuilder:validation:XValidation:rule="self.size() == 0",message="not supported yet"
type UnsupportedList []UnsupportedItem

// UnsupportedItem is an entry of an UnsupportedList.
//
// +kubebuilder:pruning:PreserveUnknownFields
type UnsupportedItem struct{}

// UnmarshalJSON takes anything, as the schema does. The field is refused as a whole, and a strict decoder
// must not call its parts unknown.
func (*Unsupported) UnmarshalJSON([]byte) error { return nil }

// UnmarshalJSON takes anything, as Unsupported's does.
func (*Never) UnmarshalJSON([]byte) error { return nil }

// UnmarshalJSON takes anything, as Unsupported's does.
func (*UnsupportedItem) UnmarshalJSON([]byte) error { return nil }

// UnsupportedString is a text of KubeVirt that may only be empty.
//
// +kubebuilder:validation:MaxLength=1024
// +kubebuilder:validation:XValidation:rule="self.size() == 0",message="not supported yet"
type UnsupportedString string

// UnsupportedBool is a switch of KubeVirt that may only be off.
//
// +kubebuilder:validation:XValidation:rule="!self",message="not supported yet"
type UnsupportedBool bool

// RefusedFields returns an error for every field of a struct that is set and not supported yet, by
// its JSON path.
func RefusedFields[T any](of *T, path *field.Path) field.ErrorList {
	return validateUnsupported(reflect.ValueOf(of), path)
}

// validateUnsupported finds every refused field below value, by its JSON path. The schema
// refuses them too, if it was asked.
func validateUnsupported(value reflect.Value, path *field.Path) field.ErrorList {
	switch value.Interface().(type) {
	case *Unsupported:
		if !value.IsNil() {
			return field.ErrorList{field.Forbidden(path, notSupported)}
		}
		return nil
	case UnsupportedList:
		if value.Len() > 0 {
			return field.ErrorList{field.Forbidden(path, notSupported)}
		}
		return nil
	case UnsupportedString, UnsupportedBool:
		if !value.IsZero() {
			return field.ErrorList{field.Forbidden(path, notSupported)}
		}
		return nil
	}
	var errs field.ErrorList
	switch value.Kind() {
	case reflect.Pointer:
		if !value.IsNil() {
			return validateUnsupported(value.Elem(), path)
		}
	case reflect.Slice:
		for i := range value.Len() {
			errs = append(errs, validateUnsupported(value.Index(i), path.Index(i))...)
		}
	case reflect.Struct:
		for i := range value.NumField() {
			f := value.Type().Field(i)
			if !f.IsExported() || !f.Type.Comparable() && f.Type.Kind() == reflect.Map {
				continue
			}
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			child := path.Child(name)
			if why, ok := f.Tag.Lookup(neverTag); ok && !value.Field(i).IsZero() {
				errs = append(errs, field.Forbidden(child, "never supported: "+why))
				continue
			}
			if why, ok := f.Tag.Lookup(laterTag); ok && !value.Field(i).IsZero() {
				errs = append(errs, field.Forbidden(child, notSupported+": "+why))
				continue
			}
			if strings.Contains(options, "inline") {
				child = path
			}
			errs = append(errs, validateUnsupported(value.Field(i), child)...)
		}
	}
	return errs
}
