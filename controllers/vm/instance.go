package vm

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// outdated says whether the VM's template has changed since the VMI was made.
func outdated(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	made := vmi.Annotations[v1.TemplateHashAnnotation]
	return made != "" && made != vm.TemplateHash()
}

// controls says whether the VM is the VMI's controller.
func controls(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	return owner.Controls(v1.VirtualMachineGroupVersionKind.GroupKind(), vm, vmi)
}
