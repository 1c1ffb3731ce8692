package validation

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

var runStrategies = []v1.VirtualMachineRunStrategy{v1.RunStrategyAlways, v1.RunStrategyHalted, v1.RunStrategyManual,
	v1.RunStrategyRerunOnFailure, v1.RunStrategyOnce}

// ValidateVirtualMachine returns every error of a VirtualMachine at once, with exact paths. It
// takes a VirtualMachine without defaults: a VirtualMachine stays as it was applied, and its
// template is defaulted when something is made from it. Before an instancetype or a preference
// is applied to the template, call ValidateVirtualMachineSpec instead. As in KubeVirt, the template may lack
// memory: a preset may have it, and LacksMemory tells at the start.
func ValidateVirtualMachine(vm *v1.VirtualMachine) field.ErrorList {
	errs := append(ValidateVirtualMachineSpec(vm), validateEvictedName(&vm.Spec.Template.Spec, vm.Name)...)
	template := field.NewPath("spec", "template")
	lack := noMemory(template.Child("spec", "domain"))
	return append(errs, slices.DeleteFunc(validateTemplate(&vm.Spec.Template, template), func(e *field.Error) bool {
		return e.Type == lack.Type && e.Field == lack.Field
	})...)
}

// LacksMemory returns an error if a VirtualMachineInstance that is made of a VirtualMachine has no memory; otherwise
// nil. The path is that of the VirtualMachine.
func LacksMemory(vmi *v1.VirtualMachineInstance) *field.Error {
	vmi = vmi.DeepCopy()
	v1.Default(vmi)
	if vmi.Spec.Domain.Memory.Guest != nil {
		return nil
	}
	return noMemory(field.NewPath("spec", "template", "spec", "domain"))
}

// ValidateVirtualMachineSpec returns every error of a VirtualMachine but its
// template's.
func ValidateVirtualMachineSpec(vm *v1.VirtualMachine) field.ErrorList {
	spec, path := &vm.Spec, field.NewPath("spec")
	var errs field.ErrorList
	switch {
	case spec.Running == nil && spec.RunStrategy == nil:
		errs = append(errs, field.Required(path.Child("runStrategy"), "one of running and runStrategy must be set"))
	case spec.Running != nil && spec.RunStrategy != nil:
		errs = append(errs, field.Forbidden(path.Child("running"),
			"running and runStrategy exclude each other; running is deprecated, use runStrategy"))
	}
	if s := spec.RunStrategy; s != nil && !slices.Contains(runStrategies, *s) {
		errs = append(errs, field.NotSupported(path.Child("runStrategy"), *s, runStrategies))
	}
	if m := spec.Instancetype; m != nil && (m.Name == "") == (m.InferFromVolume == "") {
		errs = append(errs, field.Invalid(path.Child("instancetype"), m.Name, "either name or inferFromVolume must be set"))
	}
	if m := spec.Preference; m != nil && (m.Name == "") == (m.InferFromVolume == "") {
		errs = append(errs, field.Invalid(path.Child("preference"), m.Name, "either name or inferFromVolume must be set"))
	}
	errs = append(errs, validateDataVolumeTemplates(vm, path.Child("dataVolumeTemplates"))...)
	if u := spec.UpdateVolumesStrategy; u != nil {
		errs = append(errs, oneOf(*u, path.Child("updateVolumesStrategy"), v1.UpdateVolumesStrategyReplacement,
			v1.UpdateVolumesStrategyMigration)...)
	}
	return errs
}
