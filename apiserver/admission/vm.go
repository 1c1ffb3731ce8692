package admission

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// validateVM checks a VM that is new or has another template. (About others, webhooks.yaml asks in
// older versions only.) With an instancetype or a preference, the template is not complete: it is
// checked when the VM is started.
func validateVM(vm, old *v1.VirtualMachine, _ Facts) field.ErrorList {
	if old != nil && same(vm.Spec.Template, old.Spec.Template) && same(vm.Spec.Instancetype, old.Spec.Instancetype) && same(vm.Spec.Preference, old.Spec.Preference) {
		return nil
	}
	if vm.Spec.Instancetype != nil || vm.Spec.Preference != nil {
		return v1.ValidateVirtualMachineSpec(vm)
	}
	return v1.ValidateVirtualMachine(vm)
}

func validateReplicaSet(rs, old *v1.VirtualMachineInstanceReplicaSet, _ Facts) field.ErrorList {
	if old != nil && same(rs.Spec.Template, old.Spec.Template) && same(rs.Spec.Selector, old.Spec.Selector) {
		return nil
	}
	return v1.ValidateReplicaSet(rs)
}

func validatePool(pool, old *v1beta1.VirtualMachinePool, _ Facts) field.ErrorList {
	if old != nil && same(pool.Spec.VirtualMachineTemplate, old.Spec.VirtualMachineTemplate) && same(pool.Spec.Selector, old.Spec.Selector) &&
		same(pool.Spec.MaxUnavailable, old.Spec.MaxUnavailable) {
		return nil
	}
	return v1beta1.Validate(pool)
}

func same(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }
