package admission

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
)

// validateVM checks a VM that is new or has another template (webhooks.yaml asks for no other).
// With an instancetype or a preference, the template is not complete: it is checked when the VM
// is started.
func validateVM(vm, _ *v1.VirtualMachine, _ Facts) field.ErrorList {
	if vm.Spec.Instancetype != nil || vm.Spec.Preference != nil {
		return validation.ValidateVirtualMachineSpec(vm)
	}
	return validation.ValidateVirtualMachine(vm)
}

func validateReplicaSet(rs, _ *v1.VirtualMachineInstanceReplicaSet, _ Facts) field.ErrorList {
	return validation.ValidateVirtualMachineInstanceReplicaSet(rs)
}

func validatePool(pool, _ *v1beta1.VirtualMachinePool, _ Facts) field.ErrorList {
	return v1beta1.Validate(pool)
}
