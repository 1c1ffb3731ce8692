package v1

import (
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// VirtualMachineInstancePreset sets what new VirtualMachineInstances of its namespace leave out.
// KubeVirt has deprecated presets: use instancetypes and preferences.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachineinstancepresets,shortName=vmipreset;vmipresets
// +kubebuilder:deprecatedversion:warning="VirtualMachineInstancePreset is deprecated; use VirtualMachineInstancetype and VirtualMachinePreference"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name must have at most 63 characters: an annotation of each VirtualMachineInstance that the preset applies to has the name in its key"
type VirtualMachineInstancePreset struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineInstancePresetSpec `json:"spec"`
}

// VirtualMachineInstancePresetList is a list of VirtualMachineInstancePresets.
//
// +kubebuilder:object:root=true
type VirtualMachineInstancePresetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineInstancePreset `json:"items"`
}

// VirtualMachineInstancePresetSpec says what is set, and in which VirtualMachineInstances.
type VirtualMachineInstancePresetSpec struct {
	// Selector of the labels of VirtualMachineInstances. An empty selector selects all of the
	// namespace. A VirtualMachineInstance that exists is never changed.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || self.matchLabels.size() <= 64",message="matchLabels must have at most 64 labels"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.size() <= 16",message="matchExpressions must have at most 16 items"
	Selector metav1.LabelSelector `json:"selector"`
	// Domain sets resources.requests, resources.limits, cpu, memory, machine, firmware, features, ioThreadsPolicy,
	// devices.watchdog, clock.utc, clock.timezone and clock.timer. Each is set as a whole, and each quantity of
	// resources by itself. A value of the VirtualMachineInstance's own wins: if it says anything of its cpu, its own
	// cpu holds. If it requests or limits memory, its own memory holds. Two presets that select the same
	// VirtualMachineInstance must not set different values.
	// +optional
	Domain *DomainSpec `json:"domain,omitempty"`
}

const (
	// MaxPresets is how many presets a namespace may have, and MaxPresetBytes how large they may
	// be together. All of them are read for each new VMI of the namespace.
	MaxPresets     = 64
	MaxPresetBytes = 512 << 10

	// These bound a preset's selector, which is compared with the labels of each new VMI.
	maxSelectorLabels      = 64
	maxSelectorExpressions = 16
	maxSelectorValues      = 64
)

// VirtualMachineInstancePresetResource names presets in the API.
var VirtualMachineInstancePresetResource = GroupVersion.WithResource("virtualmachineinstancepresets")

// PresetFields returns the fields of a domain that a preset sets, in this order: each as a whole, and each quantity of
// resources by itself. The documentation of the preset's Domain names them, and tools/crd reads them there.
func PresetFields() []string {
	return []string{"resources.requests", "resources.limits", "cpu", "memory", "machine", "firmware", "features",
		"ioThreadsPolicy", "devices.watchdog", "clock.utc", "clock.timezone", "clock.timer"}
}

// Sets returns a copy of what the preset sets.
func (p *VirtualMachineInstancePreset) Sets() *DomainSpec {
	set := &DomainSpec{}
	if p.Spec.Domain == nil {
		return set
	}
	said := *p.Spec.Domain // fieldAt makes objects that are not there
	for _, path := range PresetFields() {
		fieldAt(set, path).Set(fieldAt(&said, path))
	}
	return set.DeepCopy()
}

// validatePresetFields returns an error for each field that a preset has and cannot set, of a domain or of a struct in
// the domain.
func validatePresetFields(of reflect.Value, path *field.Path) (errs field.ErrorList) {
	for i := range of.NumField() {
		f, value := of.Type().Field(i), of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		child := path.Child(name)
		at := strings.TrimPrefix(child.String(), "spec.domain.")
		switch why, later := f.Tag.Lookup(laterTag); {
		case slices.Contains(PresetFields(), at), !isSaid(value):
		case slices.ContainsFunc(PresetFields(), func(set string) bool { return strings.HasPrefix(set, at+".") }):
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
func ValidateVirtualMachineInstancePreset(p *VirtualMachineInstancePreset) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateSelectorSize(&p.Spec.Selector, path.Child("selector"))
	if len(errs) == 0 { // otherwise there could be an error for each value
		errs = validation.ValidateLabelSelector(&p.Spec.Selector, validation.LabelSelectorValidationOptions{}, path.Child("selector"))
	}
	if len(p.Name) > MaxPresetName {
		errs = append(errs, field.TooLong(field.NewPath("metadata", "name"), p.Name, MaxPresetName))
	}
	if p.Spec.Domain != nil {
		errs = append(errs, validatePresetFields(reflect.ValueOf(*p.Spec.Domain), path.Child("domain"))...)
		errs = append(errs, validateExponents(&p.Spec.Domain.Resources, path.Child("domain", "resources"))...)
	}
	vmi := &VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: anyUID}, Spec: VirtualMachineInstanceSpec{Domain: *p.Sets()}}
	if d := &vmi.Spec.Domain; (d.Memory == nil || d.Memory.Guest == nil) && !d.Resources.SaysMemory() {
		d.Memory = &Memory{Guest: resource.NewQuantity(1<<30, resource.BinarySI)}
	}
	Default(vmi)
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
func validateExponents(r *ResourceRequirements, path *field.Path) (errs field.ErrorList) {
	for child, list := range map[string]ResourceList{"requests": r.Requests, "limits": r.Limits} {
		for name, quantity := range list {
			if quantity.Format == resource.DecimalExponent {
				errs = append(errs, field.Invalid(path.Child(child).Key(string(name)), quantity.String(), "quantities with exponents are refused"))
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

// MaxPresetName is the longest name in the key of an annotation.
const MaxPresetName = 63
