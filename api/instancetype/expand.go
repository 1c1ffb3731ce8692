package instancetype

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Expand returns a copy of the VM with a size and a preference applied to its template; either
// may be nil. The errors are those of that copy, and what it lacks of the preference's
// requirements.
func Expand(vm *v1.VirtualMachine, size *v1beta1.VirtualMachineInstancetypeSpec, preference *v1beta1.VirtualMachinePreferenceSpec) (*v1.VirtualMachine, field.ErrorList) {
	path := field.NewPath("spec", "template")
	expanded := vm.DeepCopy()
	template := &expanded.Spec.Template
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: vm.UID, Annotations: template.ObjectMeta.Annotations}, Spec: template.Spec}
	if errs := Apply(size, preference, vmi, path); len(errs) > 0 {
		return nil, errs
	}
	template.Spec, template.ObjectMeta.Annotations = *vmi.Spec.DeepCopy(), vmi.Annotations
	errs := v1.ValidateVirtualMachine(expanded)
	if preference != nil && len(errs) == 0 {
		v1.Default(vmi)
		errs = CheckRequirements(preference.Requirements, &vmi.Spec, path)
	}
	return expanded, errs
}
