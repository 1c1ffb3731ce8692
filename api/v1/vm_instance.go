package v1

import (
	"maps"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Instance returns the VirtualMachineInstance that a VM is started as, with the cluster's
// configuration and without presets. If paused, the guest's CPUs do not run yet. Instance is
// pure, and does not change the VM.
func (vm *VirtualMachine) Instance(config *KubeVirtConfiguration, paused bool) *VirtualMachineInstance {
	vmi := vm.Draft(paused)
	vm.Identify(vmi, config)
	return vmi
}

// Draft returns the VirtualMachineInstance that a VM is started as, before presets and Identify fill
// in what the template leaves out.
func (vm *VirtualMachine) Draft(paused bool) *VirtualMachineInstance {
	template := vm.Spec.Template.DeepCopy()
	dropAbsent(&template.Spec)
	vmi := &VirtualMachineInstance{
		TypeMeta: metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "VirtualMachineInstance"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            vm.Name,
			Namespace:       vm.Namespace,
			Labels:          WithoutReservedLabels(template.ObjectMeta.Labels),
			Annotations:     map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, VirtualMachineGroupVersionKind)},
		},
		Spec: template.Spec,
	}
	maps.Copy(vmi.Annotations, WithoutReservedAnnotations(template.ObjectMeta.Annotations))
	vmi.Annotations[VMGenerationAnnotation] = strconv.FormatInt(vm.Generation, 10)
	vmi.Annotations[TemplatePartsAnnotation] = vm.Parts().String()
	delete(vmi.Annotations, ClaimsAnnotation)
	if held := vm.claimsAnnotation(); held != "" {
		vmi.Annotations[ClaimsAnnotation] = held
	}
	if paused {
		vmi.Spec.StartStrategy = StartStrategyPaused
	}
	// The machine type of the first start is the VM's own, and no preset changes it.
	if !vm.NamesMachine() && vm.Annotations[MachineTypeAnnotation] != "" {
		vmi.Spec.Domain.Machine = &Machine{Type: vm.Annotations[MachineTypeAnnotation]}
	}
	return vmi
}
