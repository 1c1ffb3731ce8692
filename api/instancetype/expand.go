package instancetype

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
)

// template returns the path of a VM's template.
func template() *field.Path { return field.NewPath("spec", "template") }

// Expand returns a copy of the VM with a size and a preference applied to its template; either
// may be nil. The errors are those of Apply. The copy is not checked: see Check.
func Expand(vm *v1.VirtualMachine, size *v1beta1.VirtualMachineInstancetypeSpec, preference *v1beta1.VirtualMachinePreferenceSpec) (*v1.VirtualMachine, field.ErrorList) {
	expanded := vm.DeepCopy()
	copied := &expanded.Spec.Template
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: vm.UID, Annotations: copied.ObjectMeta.Annotations}, Spec: copied.Spec}
	if errs := Apply(size, preference, vmi, template()); len(errs) > 0 {
		return nil, errs
	}
	copied.Spec, copied.ObjectMeta.Annotations = *vmi.Spec.DeepCopy(), vmi.Annotations
	return expanded, nil
}

// Check returns the errors of a VM that Expand returned or, if it is valid, the requirements of the preference that
// it does not meet.
func Check(expanded *v1.VirtualMachine, size *v1beta1.VirtualMachineInstancetypeSpec, preference *v1beta1.VirtualMachinePreferenceSpec) field.ErrorList {
	if errs := validation.ValidateVirtualMachine(expanded); len(errs) > 0 {
		return errs
	}
	return Lacks(expanded, size, preference)
}

// ExpandChecked calls Expand, then Check on its result, and returns the expanded VM and the errors of either.
func ExpandChecked(vm *v1.VirtualMachine, size *v1beta1.VirtualMachineInstancetypeSpec, preference *v1beta1.VirtualMachinePreferenceSpec) (*v1.VirtualMachine, field.ErrorList) {
	expanded, errs := Expand(vm, size, preference)
	if len(errs) == 0 {
		errs = Check(expanded, size, preference)
	}
	return expanded, errs
}
