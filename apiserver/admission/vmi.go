package admission

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// defaultVMI does what virt-controller does too where this webhook was not asked.
// virt-controller then has nothing to write before it makes the launcher pod: each
// write of a VMI takes the API server longer than one of a pod.
func defaultVMI(vmi *v1.VirtualMachineInstance, facts Facts) {
	v1.ApplyClusterDefaults(vmi, facts.Cluster)
	v1.Default(vmi)
	f := vmi.Spec.Domain.Firmware
	if facts.New != "" {
		// An object gets its UID, which virt-controller takes, only after this.
		if f.UUID == "" {
			f.UUID = string(facts.New)
		}
		// A finalizer that somebody took away from an older VMI stays away.
		if !slices.Contains(vmi.Finalizers, v1.VMIFinalizer) {
			vmi.Finalizers = append(vmi.Finalizers, v1.VMIFinalizer)
		}
	}
	if *f == (v1.Firmware{}) {
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
