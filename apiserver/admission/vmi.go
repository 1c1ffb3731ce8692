package admission

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// defaultVMI fills in a new or changed VMI. virt-controller does the same if this webhook was
// not asked. With the webhook, virt-controller need not write the VMI before it makes the
// launcher pod: the API server takes longer to write a VMI than to write a pod.
func defaultVMI(vmi *v1.VirtualMachineInstance, facts Facts) {
	v1.ApplyClusterDefaults(vmi, facts.Cluster)
	v1.Default(vmi)
	f := vmi.Spec.Domain.Firmware
	if facts.New != "" {
		// virt-controller takes the VMI's UID, which the API server sets only after this
		// webhook.
		if f.UUID == "" {
			f.UUID = string(facts.New)
		}
		// For new VMIs only: a finalizer that somebody removed from an older VMI stays away.
		if !slices.Contains(vmi.Finalizers, v1.VMIFinalizer) {
			vmi.Finalizers = append(vmi.Finalizers, v1.VMIFinalizer)
		}
	}
	if *f == (v1.Firmware{}) {
		vmi.Spec.Domain.Firmware = nil
	}
}

// validateVMI checks new VMIs only: a VMI's spec is immutable (see the policy
// kubevirt-vmi-update).
func validateVMI(vmi, old *v1.VirtualMachineInstance, facts Facts) field.ErrorList {
	if old != nil {
		return nil
	}
	v1.ApplyClusterDefaults(vmi, facts.Cluster)
	v1.Default(vmi)
	return append(v1.Validate(vmi), v1.ValidateForCluster(vmi, facts.Cluster)...)
}
