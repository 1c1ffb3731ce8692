package vm

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// outdated says whether a VMI was made from another spec than the template's.
func outdated(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	made := vmi.Annotations[v1.TemplateHashAnnotation]
	return made != "" && made != vm.TemplateHash()
}

// controls says whether the VM is the VMI's controller. It looks at more than
// the UID: an owner of another kind is nobody's to vouch for.
func controls(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	owner := metav1.GetControllerOf(vmi)
	if owner == nil || owner.Kind != "VirtualMachine" || owner.Name != vm.Name {
		return false
	}
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && group.Group == v1.GroupVersion.Group && owner.UID == vm.UID
}
