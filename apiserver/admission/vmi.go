package admission

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// defaultVMI does what virt-controller does too, but for the finalizer: that one
// is virt-controller's promise to look after the object.
func defaultVMI(vmi *v1.VirtualMachineInstance, facts Facts) {
	v1.ApplyClusterDefaults(vmi, facts.Cluster)
	v1.Default(vmi)
	// Objects get their UID, which is the default of the firmware's, only
	// after this.
	if f := vmi.Spec.Domain.Firmware; f != nil && *f == (v1.Firmware{}) {
		vmi.Spec.Domain.Firmware = nil
	}
}

// validateVMI is asked of new ones: a VMI's spec changes no more (see the policy
// kubevirt-vmi-update).
func validateVMI(vmi, old *v1.VirtualMachineInstance, facts Facts) field.ErrorList {
	if old != nil {
		return nil
	}
	v1.ApplyClusterDefaults(vmi, facts.Cluster)
	v1.Default(vmi)
	return append(v1.Validate(vmi), v1.ValidateForCluster(vmi, facts.Cluster)...)
}
