package vm

import (
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

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

// complete gives a new VMI its defaults and its finalizer, as virt-api gives them to a user's.
// The VMI controller then has nothing to write before it makes the launcher pod.
func complete(vmi *v1.VirtualMachineInstance) {
	v1.Default(vmi)
	controllerutil.AddFinalizer(vmi, v1.VMIFinalizer)
}
