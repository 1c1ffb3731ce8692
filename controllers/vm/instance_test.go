package vm

import (
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestWhichVMIIsTheVMsOwn(t *testing.T) {
	vm := machine(v1.RunStrategyAlways)
	if vmi := vm.Instance(&v1.KubeVirtConfiguration{}, false); !controls(vm, vmi) || !vm.HasParts(vmi) {
		t.Errorf("it is not the VM's own, or not of its template: %+v", vmi.ObjectMeta)
	}
	if vmi := run(); !vm.HasParts(vmi) {
		t.Error("one that says nothing of its template is outdated")
	}
	for what, edit := range map[string]func(*v1.VirtualMachineInstance){
		"no owner":       func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences = nil },
		"another UID":    func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].UID = "other" },
		"another kind":   func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].Kind = "VirtualMachinePool" },
		"another group":  func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].APIVersion = "foo.example/v1" },
		"no controller":  func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].Controller = nil },
		"another's name": func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].Name = "other" },
		"no version":     func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].APIVersion = "a/b/c" },
	} {
		vmi := vm.Instance(&v1.KubeVirtConfiguration{}, false)
		edit(vmi)
		if controls(vm, vmi) {
			t.Errorf("%s: it is taken for the VM's", what)
		}
	}
	other := vm.DeepCopy()
	vmi := vm.Instance(&v1.KubeVirtConfiguration{}, false)
	if vmi.OwnerReferences[0].APIVersion = "kubevirt.io/v1alpha3"; !controls(other, vmi) {
		t.Error("another version of the API is not taken for the VM's")
	}
}

// TestOnlyAnExistingMachineTypeIsKept: the VM keeps the machine type that a node says its guest has only if
// that type exists.
func TestOnlyAnExistingMachineTypeIsKept(t *testing.T) {
	for machineType, want := range map[string]string{"pc-q35-7.2": "pc-q35-7.2", "pc-q35-0.0": "", "pc-q35-99.9": "",
		"q35": "", "": "", "pc-q35-7.2\n": ""} {
		vm, vmi := machine(v1.RunStrategyAlways), run(v1.Running)
		vmi.Status.Machine = &v1.Machine{Type: machineType}
		if got := pinned(vm, vmi); got != want {
			t.Errorf("%q: %q", machineType, got)
		}
		vm.Annotations = map[string]string{v1.MachineTypeAnnotation: "pc-q35-6.2"}
		if got := pinned(vm, vmi); got != "" {
			t.Errorf("%q in place of what is there: %q", machineType, got)
		}
	}
	if got := pinned(machine(v1.RunStrategyAlways), nil); got != "" {
		t.Errorf("without a VMI: %q", got)
	}
}
