package admission

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
)

// defaultVMI fills in a new or changed VMI, but no new VMI of a namespace with presets. Presets come
// before defaults, and virt-controller applies both to that VMI. virt-api does not: anybody in the
// cluster can ask virt-api, and its answer would show the presets of others.
//
// Otherwise virt-controller does the same if this webhook was not asked. With the webhook,
// virt-controller need not write the VMI before it makes the launcher pod: the API server takes
// longer to write a VMI than to write a pod.
func defaultVMI(vmi *v1.VirtualMachineInstance, facts Facts) {
	if facts.Presets {
		// The finalizer would say that presets and defaults are there.
		vmi.Finalizers = slices.DeleteFunc(vmi.Finalizers, func(f string) bool { return f == v1.VMIFinalizer })
		return
	}
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
	errs := append(validation.ValidateVirtualMachineInstance(vmi), validation.ValidateForCluster(vmi, facts.Cluster)...)
	if !slices.Contains(vmi.Finalizers, v1.VMIFinalizer) {
		// It is not filled in yet, and a preset may say its memory.
		errs = slices.DeleteFunc(errs, func(e *field.Error) bool {
			return e.Type == field.ErrorTypeRequired && e.Field == "spec.domain.memory.guest"
		})
	}
	return errs
}
