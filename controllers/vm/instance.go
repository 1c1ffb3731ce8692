package vm

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// controls reports whether the VM is the VMI's controller.
func controls(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	return owner.Controls(v1.VirtualMachineGroupVersionKind.GroupKind(), vm, vmi)
}
