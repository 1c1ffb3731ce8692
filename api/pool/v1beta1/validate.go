package v1beta1

import (
	"fmt"
	"slices"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
)

const (
	// maxNameLength leaves room in a label's value for a dash and ten characters.
	maxNameLength = 52
	notSupported  = "not supported yet"
)

// Validate returns every error of a VirtualMachinePool at once, with exact paths. Its errors of
// the template are those of every VirtualMachine made from it.
func Validate(pool *VirtualMachinePool) field.ErrorList {
	spec, path := &pool.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if len(pool.Name) > maxNameLength {
		errs = append(errs, field.TooLong(field.NewPath("metadata", "name"), pool.Name, maxNameLength))
	}
	errs = append(errs, validation.ValidateReplicas(pool.WantedReplicas(), path.Child("replicas"))...)
	if m := spec.MaxUnavailable; m != nil {
		if n, err := intstr.GetScaledValueFromIntOrPercent(m, 100, false); err != nil || n < 0 || m.Type == intstr.String && n > 100 {
			errs = append(errs, field.Invalid(path.Child("maxUnavailable"), m.String(), "must be a number or a percentage from 0% to 100%"))
		}
	}
	if spec.Autohealing != nil {
		errs = append(errs, field.Forbidden(path.Child("autohealing"), notSupported))
	}
	errs = append(errs, validateSelector(spec, path)...)
	errs = append(errs, validateScaleIn(spec.ScaleInStrategy, path.Child("scaleInStrategy"))...)
	errs = append(errs, validateUpdate(spec.UpdateStrategy, path.Child("updateStrategy"))...)
	return validation.InOrder(append(errs, validateTemplate(&spec.VirtualMachineTemplate, pool.Namespace, path.Child("virtualMachineTemplate"))...))
}

// validateTemplate validates the template of VirtualMachines. With an instancetype or a
// preference, the guest's template is not complete: it is validated when the VirtualMachine is
// started.
func validateTemplate(template *VirtualMachineTemplateSpec, namespace string, path *field.Path) field.ErrorList {
	meta := path.Child("metadata")
	errs := metav1validation.ValidateLabels(template.ObjectMeta.Labels, meta.Child("labels"))
	errs = append(errs, apivalidation.ValidateAnnotations(template.ObjectMeta.Annotations, meta.Child("annotations"))...)
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: template.Spec}
	validate := validation.ValidateVirtualMachine
	if vm.Spec.Instancetype != nil || vm.Spec.Preference != nil {
		validate = validation.ValidateVirtualMachineSpec
	}
	for _, err := range validate(vm) {
		err.Field = path.String() + "." + err.Field
		errs = append(errs, err)
	}
	for i := range vm.Spec.DataVolumeTemplates {
		// A VirtualMachine's index is appended: a hyphen and ten digits at most.
		if most := utilvalidation.DNS1123SubdomainMaxLength - len("-2147483647"); len(vm.Spec.DataVolumeTemplates[i].ObjectMeta.Name) > most {
			errs = append(errs, field.TooLong(path.Child("spec", "dataVolumeTemplates").Index(i).Child("metadata", "name"), "", most))
		}
	}
	return errs
}

func validateSelector(spec *VirtualMachinePoolSpec, parent *field.Path) field.ErrorList {
	path := parent.Child("selector")
	if spec.Selector == nil || len(spec.Selector.MatchLabels)+len(spec.Selector.MatchExpressions) == 0 {
		return field.ErrorList{field.Required(path, "must match the labels of virtualMachineTemplate")}
	}
	if errs := metav1validation.ValidateLabelSelector(spec.Selector, metav1validation.LabelSelectorValidationOptions{}, path); len(errs) > 0 {
		return errs
	}
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	if err != nil {
		return field.ErrorList{field.Invalid(path, spec.Selector, err.Error())}
	}
	if have := labels.Set(spec.VirtualMachineTemplate.ObjectMeta.Labels); !selector.Matches(have) {
		return field.ErrorList{field.Invalid(parent.Child("virtualMachineTemplate", "metadata", "labels"), have.String(),
			fmt.Sprintf("the selector %s does not match them", selector))}
	}
	return nil
}

func validateScaleIn(s *VirtualMachinePoolScaleInStrategy, path *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := oneAtMost(path, s.Unmanaged != nil, s.Opportunistic != nil, s.Proactive != nil)
	if o := s.Opportunistic; o != nil {
		errs = append(errs, validatePreservation(o.StatePreservation, path.Child("opportunistic", "statePreservation"))...)
	}
	if p := s.Proactive; p != nil {
		errs = append(errs, validatePolicy(p.SelectionPolicy, path.Child("proactive", "selectionPolicy"))...)
		errs = append(errs, validatePreservation(p.StatePreservation, path.Child("proactive", "statePreservation"))...)
	}
	return errs
}

func validateUpdate(s *VirtualMachinePoolUpdateStrategy, path *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := oneAtMost(path, s.Unmanaged != nil, s.Opportunistic != nil, s.Proactive != nil)
	if s.Proactive != nil {
		errs = append(errs, validatePolicy(s.Proactive.SelectionPolicy, path.Child("proactive", "selectionPolicy"))...)
	}
	return errs
}

func oneAtMost(path *field.Path, set ...bool) field.ErrorList {
	count := 0
	for _, is := range set {
		if is {
			count++
		}
	}
	if count > 1 {
		return field.ErrorList{field.Forbidden(path, "only one strategy may be set")}
	}
	return nil
}

func validatePreservation(p *StatePreservation, path *field.Path) field.ErrorList {
	supported := []StatePreservation{StatePreservationDisabled, StatePreservationOffline}
	if p != nil && !slices.Contains(supported, *p) {
		return field.ErrorList{field.NotSupported(path, *p, supported)}
	}
	return nil
}

func validatePolicy(p *VirtualMachinePoolSelectionPolicy, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	var errs field.ErrorList
	known := []VirtualMachinePoolSortPolicy{SortAscending, SortDescending, SortNewest, SortOldest, SortRandom}
	if s := p.SortPolicy; s != nil && !slices.Contains(known, *s) {
		errs = append(errs, field.NotSupported(path.Child("sortPolicy"), *s, known))
	}
	if p.Selectors != nil {
		errs = append(errs, field.Forbidden(path.Child("selectors"), notSupported))
	}
	return errs
}
