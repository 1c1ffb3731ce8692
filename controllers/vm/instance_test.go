package vm

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const specText = `{"runStrategy":"Always","template":{"metadata":{"labels":{"a":"b"}},"spec":{
 "domain":{"devices":{"disks":[{"name":"root","disk":{"bus":"virtio"}}],"interfaces":[{"name":"one","masquerade":{}},{"name":"two","bridge":{}},{"name":"three","masquerade":{},"macAddress":"02:00:00:00:00:03"}]},
  "memory":{"guest":"1Gi"},"resources":{"requests":{"memory":"1Gi"}}},
 "networks":[{"name":"one","pod":{}}],
 "volumes":[{"name":"root","containerDisk":{"image":"example.com/disk:1"}}]}}}`

func parsed(t *testing.T, text string) *v1.VirtualMachine {
	t.Helper()
	vm := machine(v1.RunStrategyAlways)
	vm.UID = "5d307ca9-b3ef-428c-8861-06e72d69f223"
	vm.Spec = v1.VirtualMachineSpec{}
	if err := json.Unmarshal([]byte(text), &vm.Spec); err != nil {
		t.Fatal(err)
	}
	return vm
}

func TestInstance(t *testing.T) {
	vm := parsed(t, specText)
	untouched := vm.DeepCopy()
	vmi := instance(vm, false)
	if diff := cmp.Diff(untouched, vm); diff != "" {
		t.Errorf("the VM was changed: %s", diff)
	}
	if diff := cmp.Diff(vmi, instance(vm, false)); diff != "" {
		t.Errorf("made twice, it is another: %s", diff)
	}
	if !controls(vm, vmi) || outdated(vm, vmi) {
		t.Errorf("it is not the VM's own, or not of its template: %+v", vmi.ObjectMeta)
	}
	if f := vmi.Spec.Domain.Firmware; f.UUID != string(vm.UID) || f.Serial != "52bea7e0-912d-81aa-94ae-41506a17de17" {
		t.Errorf("firmware %+v", f)
	}
	nics := vmi.Spec.Domain.Devices.Interfaces
	if got, want := []string{nics[0].MacAddress, nics[1].MacAddress, nics[2].MacAddress}, []string{"52:54:00:27:9b:d5", "", "02:00:00:00:00:03"}; !cmp.Equal(got, want) {
		t.Errorf("MACs %q, want %q", got, want)
	}
	if vmi.Spec.Domain.Machine != nil || vmi.Spec.StartStrategy != "" {
		t.Errorf("machine %+v, start strategy %q", vmi.Spec.Domain.Machine, vmi.Spec.StartStrategy)
	}

	vm.Annotations = map[string]string{v1.MachineTypeAnnotation: "pc-q35-7.2"}
	vm.Spec.Template.Spec.Domain.Machine = &v1.Machine{}
	if vmi := instance(vm, true); vmi.Spec.Domain.Machine.Type != "pc-q35-7.2" || vmi.Spec.StartStrategy != v1.StartStrategyPaused {
		t.Errorf("machine %+v, start strategy %q", vmi.Spec.Domain.Machine, vmi.Spec.StartStrategy)
	}
	vm.Spec.Template.Spec.Domain.Machine.Type = "q35"
	vm.Spec.Template.Spec.Domain.Firmware = &v1.Firmware{UUID: "named", Serial: "0815"}
	if vmi := instance(vm, false); vmi.Spec.Domain.Machine.Type != "q35" || *vmi.Spec.Domain.Firmware != *vm.Spec.Template.Spec.Domain.Firmware {
		t.Errorf("machine %+v, firmware %+v: not what the template names", vmi.Spec.Domain.Machine, vmi.Spec.Domain.Firmware)
	}
}

// TestTemplateHash: what says the same has the same hash, in every version. If
// this one changes, a running guest of an earlier version looks outdated: a
// field was added to the API that is written although it is not set.
func TestTemplateHash(t *testing.T) {
	vm := parsed(t, specText)
	if got, want := templateHash(vm), "968223b35805b3c6"; got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
	for what, edit := range map[string]func(*v1.VirtualMachine){
		"run strategy": func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted) },
		"labels":       func(vm *v1.VirtualMachine) { vm.Spec.Template.ObjectMeta.Labels = nil },
		"1024Mi":       func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Domain.Memory = memory(t, "1024Mi") },
	} {
		edited := vm.DeepCopy()
		edit(edited)
		if templateHash(edited) != templateHash(vm) {
			t.Errorf("%s: another hash", what)
		}
	}
	for what, edit := range map[string]func(*v1.VirtualMachineInstanceSpec){
		"memory": func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Memory = memory(t, "2Gi") },
		"image":  func(s *v1.VirtualMachineInstanceSpec) { s.Volumes[0].ContainerDisk.Image = "example.com/disk:2" },
		"grace":  func(s *v1.VirtualMachineInstanceSpec) { s.TerminationGracePeriodSeconds = ptr.To[int64](0) },
	} {
		vmi := instance(vm, false)
		edited := vm.DeepCopy()
		edit(&edited.Spec.Template.Spec)
		if !outdated(edited, vmi) {
			t.Errorf("%s: not another hash", what)
		}
	}
	if vmi := run(); outdated(vm, vmi) {
		t.Error("one that says nothing of its template is outdated")
	}
}

func memory(t *testing.T, guest string) *v1.Memory {
	t.Helper()
	m := &v1.Memory{}
	if err := json.Unmarshal([]byte(`{"guest":"`+guest+`"}`), m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestControls(t *testing.T) {
	vm := parsed(t, specText)
	for what, edit := range map[string]func(*v1.VirtualMachineInstance){
		"no owner":       func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences = nil },
		"another UID":    func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].UID = "other" },
		"another kind":   func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].Kind = "VirtualMachinePool" },
		"another group":  func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].APIVersion = "foo.example/v1" },
		"no controller":  func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].Controller = nil },
		"another's name": func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].Name = "other" },
		"no version":     func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].APIVersion = "a/b/c" },
	} {
		vmi := instance(vm, false)
		edit(vmi)
		if controls(vm, vmi) {
			t.Errorf("%s: it is taken for the VM's", what)
		}
	}
	other := vm.DeepCopy()
	vmi := instance(vm, false)
	if vmi.OwnerReferences[0].APIVersion = "kubevirt.io/v1alpha3"; !controls(other, vmi) {
		t.Error("another version of the API is not taken for the VM's")
	}
}
