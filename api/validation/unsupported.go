package validation

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const notSupported = "not supported yet"

// neverTag is the tag that says why a field is never supported, and laterTag says why one is not supported yet.
const (
	neverTag = "never"
	laterTag = "later"
)

// RefusedFields returns an error for every field of a struct that is set and not supported yet, by
// its JSON path.
func RefusedFields[T any](of *T, path *field.Path) field.ErrorList {
	return validateUnsupported(reflect.ValueOf(of), path)
}

// validateUnsupported finds every refused field below value, by its JSON path. The schema
// refuses them too, if it was asked.
func validateUnsupported(value reflect.Value, path *field.Path) field.ErrorList {
	switch value.Interface().(type) {
	case *v1.Unsupported:
		if !value.IsNil() {
			return field.ErrorList{field.Forbidden(path, notSupported)}
		}
		return nil
	case v1.UnsupportedList:
		if value.Len() > 0 {
			return field.ErrorList{field.Forbidden(path, notSupported)}
		}
		return nil
	case v1.UnsupportedString, v1.UnsupportedBool:
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
