package validation

import (
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const (
	// These bound a preset's selector, which is compared with the labels of each new VMI.
	maxSelectorLabels      = 64
	maxSelectorExpressions = 16
	maxSelectorValues      = 64
)

// validatePresetFields returns an error for each field that a preset has and cannot set, of a domain or of a struct in
// the domain.
func validatePresetFields(of reflect.Value, path *field.Path) (errs field.ErrorList) {
	for i := range of.NumField() {
		f, value := of.Type().Field(i), of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		child := path.Child(name)
		at := strings.TrimPrefix(child.String(), "spec.domain.")
		switch why, later := f.Tag.Lookup(laterTag); {
		case slices.Contains(v1.PresetFields(), at), !isSaid(value):
		case slices.ContainsFunc(v1.PresetFields(), func(set string) bool { return strings.HasPrefix(set, at+".") }):
			errs = append(errs, validatePresetFields(reflect.Indirect(value), child)...)
		case later:
			errs = append(errs, field.Forbidden(child, notSupported+": "+why))
		default:
			errs = append(errs, field.Forbidden(child, "a preset cannot set it; set it in the VirtualMachineInstance"))
		}
	}
	return errs
}

// isSaid reports whether a manifest says something by a field. It does by an empty object and by a switch that is off,
// and not by an empty
// list, map or text.
func isSaid(value reflect.Value) bool {
	switch value.Kind() {
	case reflect.Pointer:
		return !value.IsNil() && (value.Elem().Kind() != reflect.String || !value.Elem().IsZero())
	case reflect.Slice, reflect.Map:
		return value.Len() > 0
	}
	return !value.IsZero()
}

// ValidateVirtualMachineInstancePreset returns every error of a preset at once, with exact paths. A preset is valid if
// a VMI with nothing but the preset's values is.
func ValidateVirtualMachineInstancePreset(p *v1.VirtualMachineInstancePreset) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateSelectorSize(&p.Spec.Selector, path.Child("selector"))
	if len(errs) == 0 { // otherwise there could be an error for each value
		errs = metav1validation.ValidateLabelSelector(&p.Spec.Selector, metav1validation.LabelSelectorValidationOptions{},
			path.Child("selector"))
	}
	if len(p.Name) > v1.MaxPresetName {
		errs = append(errs, field.TooLong(field.NewPath("metadata", "name"), p.Name, v1.MaxPresetName))
	}
	if p.Spec.Domain != nil {
		errs = append(errs, validatePresetFields(reflect.ValueOf(*p.Spec.Domain), path.Child("domain"))...)
		errs = append(errs, validateExponents(&p.Spec.Domain.Resources, path.Child("domain", "resources"))...)
	}
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: anyUID},
		Spec: v1.VirtualMachineInstanceSpec{Domain: *p.Sets()}}
	if d := &vmi.Spec.Domain; (d.Memory == nil || d.Memory.Guest == nil) && !d.Resources.SaysMemory() {
		d.Memory = &v1.Memory{Guest: resource.NewQuantity(1<<30, resource.BinarySI)}
	}
	v1.Default(vmi)
	for _, err := range validateSpec(&vmi.Spec, path) {
		// One error of a field is enough.
		if !slices.ContainsFunc(errs, func(named *field.Error) bool { return named.Field == err.Field }) {
			errs = append(errs, err)
		}
	}
	return InOrder(errs)
}

// validateExponents refuses quantities such as 1e9. For a VMI the CRD has this rule; that of presets
// has no rules (tools/crd).
func validateExponents(r *v1.ResourceRequirements, path *field.Path) (errs field.ErrorList) {
	for child, list := range map[string]v1.ResourceList{"requests": r.Requests, "limits": r.Limits} {
		for name, quantity := range list {
			if quantity.Format == resource.DecimalExponent {
				errs = append(errs, field.Invalid(path.Child(child).Key(string(name)), quantity.String(),
					"quantities with exponents are refused"))
			}
		}
	}
	return errs
}

func validateSelectorSize(s *metav1.LabelSelector, path *field.Path) (errs field.ErrorList) {
	if n := len(s.MatchLabels); n > maxSelectorLabels {
		errs = append(errs, field.TooMany(path.Child("matchLabels"), n, maxSelectorLabels))
	}
	expressions := path.Child("matchExpressions")
	if n := len(s.MatchExpressions); n > maxSelectorExpressions {
		return append(errs, field.TooMany(expressions, n, maxSelectorExpressions))
	}
	for i, e := range s.MatchExpressions {
		if n := len(e.Values); n > maxSelectorValues {
			errs = append(errs, field.TooMany(expressions.Index(i).Child("values"), n, maxSelectorValues))
		}
	}
	return errs
}
