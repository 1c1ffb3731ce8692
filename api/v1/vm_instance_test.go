package v1

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const specText = `{"runStrategy":"Always","template":{"metadata":{"labels":{"a":"b"}},"spec":{
 "domain":{"devices":{"disks":[{"name":"root","disk":{"bus":"virtio"}}],"interfaces":[{"name":"one","masquerade":{}},{"name":"two","bridge":{}},{"name":"three","masquerade":{},"macAddress":"02:00:00:00:00:03"}]},
  "memory":{"guest":"1Gi"},"resources":{"requests":{"memory":"1Gi"}}},
 "networks":[{"name":"one","pod":{}}],
 "volumes":[{"name":"root","containerDisk":{"image":"example.com/disk:1"}}]}}}`

func parsedVM(t *testing.T, text string) *VirtualMachine {
	t.Helper()
	vm := &VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "ns",
		UID: "5d307ca9-b3ef-428c-8861-06e72d69f223", Generation: 3}}
	if err := json.Unmarshal([]byte(text), &vm.Spec); err != nil {
		t.Fatal(err)
	}
	return vm
}

// plain is the configuration of a cluster without one.
var plain = &KubeVirtConfiguration{}

func TestInstanceOfVM(t *testing.T) {
	vm := parsedVM(t, specText)
	untouched := vm.DeepCopy()
	vmi := vm.Instance(plain, false)
	if diff := cmp.Diff(untouched, vm); diff != "" {
		t.Errorf("the VM was changed: %s", diff)
	}
	if diff := cmp.Diff(vmi, vm.Instance(plain, false)); diff != "" {
		t.Errorf("made twice, it is another: %s", diff)
	}
	if f := vmi.Spec.Domain.Firmware; f.UUID != string(vm.UID) || f.Serial != "52bea7e0-912d-81aa-94ae-41506a17de17" {
		t.Errorf("firmware %+v", f)
	}
	nics := vmi.Spec.Domain.Devices.Interfaces
	if got, want := []string{nics[0].MacAddress, nics[1].MacAddress, nics[2].MacAddress},
		[]string{"52:54:00:27:9b:d5", "", "02:00:00:00:00:03"}; !cmp.Equal(got, want) {
		t.Errorf("MACs %q, want %q", got, want)
	}
	if vmi.Spec.Domain.Machine != nil || vmi.Spec.StartStrategy != "" {
		t.Errorf("machine %+v, start strategy %q", vmi.Spec.Domain.Machine, vmi.Spec.StartStrategy)
	}

	// The bridge is not the pod's any more, so that its MAC stays the same, too.
	beside := vm.DeepCopy()
	beside.Spec.Template.Spec.Networks = []Network{{Name: nics[1].Name, Multus: &MultusNetwork{NetworkName: "lan"}}}
	if got, want := beside.Instance(plain, false).Spec.Domain.Devices.Interfaces[1].MacAddress,
		MAC(vm.UID, nics[1].Name); got != want {
		t.Errorf("MAC on a network of Multus %q, want %q", got, want)
	}

	vm.Annotations = map[string]string{MachineTypeAnnotation: "pc-q35-7.2"}
	vm.Spec.Template.Spec.Domain.Machine = &Machine{}
	if vmi := vm.Instance(plain, true); vmi.Spec.Domain.Machine.Type != "pc-q35-7.2" ||
		vmi.Spec.StartStrategy != StartStrategyPaused {
		t.Errorf("machine %+v, start strategy %q", vmi.Spec.Domain.Machine, vmi.Spec.StartStrategy)
	}
	// A preset fills in what the identity would, but not the machine type of the first start.
	draft := vm.Draft(false)
	overridden, errs := ApplyPresets(draft,
		[]VirtualMachineInstancePreset{parsedPreset(t, "p",
			"selector: {}\ndomain: {machine: {type: q35}, firmware: {serial: x1}}")})
	vm.Identify(draft, plain)
	if f := draft.Spec.Domain.Firmware; len(errs) > 0 || len(overridden) != 1 ||
		draft.Spec.Domain.Machine.Type != "pc-q35-7.2" || f.Serial != "x1" || f.UUID != string(vm.UID) {
		t.Errorf("with a preset: machine %+v, firmware %+v, overridden %q, %v", draft.Spec.Domain.Machine, f, overridden,
			errs)
	}
	if parts := draft.Annotations[TemplatePartsAnnotation]; parts != vm.Parts().String() {
		t.Errorf("the guest's parts are %s, want %s", parts, vm.Parts())
	}
	vm.Spec.Template.Spec.Domain.Machine.Type = "q35"
	vm.Spec.Template.Spec.Domain.Firmware = &Firmware{UUID: "named", Serial: "0815"}
	if vmi := vm.Instance(plain, false); vmi.Spec.Domain.Machine.Type != "q35" ||
		*vmi.Spec.Domain.Firmware != *vm.Spec.Template.Spec.Domain.Firmware {
		t.Errorf("machine %+v, firmware %+v: not what the template names", vmi.Spec.Domain.Machine, vmi.Spec.Domain.Firmware)
	}
}

func memory(t *testing.T, guest string) *Memory {
	t.Helper()
	m := &Memory{}
	if err := json.Unmarshal([]byte(`{"guest":"`+guest+`"}`), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestInstanceOfVMWithClusterDefaults: an interface that the cluster's configuration adds has
// a MAC that stays, and a machine type that was kept is not its default.
func TestInstanceOfVMWithClusterDefaults(t *testing.T) {
	config := &KubeVirtConfiguration{MachineType: "pc-q35-8.0",
		NetworkConfiguration: &NetworkConfiguration{NetworkInterface: "masquerade"}}
	vm := parsedVM(t, `{"runStrategy":"Always","template":{"spec":{"domain":{"devices":{}}}}}`)
	vmi := vm.Instance(config, false)
	if nics := vmi.Spec.Domain.Devices.Interfaces; len(nics) != 1 || nics[0].MacAddress == "" ||
		vmi.Spec.Domain.Machine.Type != "pc-q35-8.0" {
		t.Errorf("domain %+v", vmi.Spec.Domain)
	}
	vm.Annotations = map[string]string{MachineTypeAnnotation: "pc-q35-7.2"}
	if got := vm.Instance(config, false).Spec.Domain.Machine.Type; got != "pc-q35-7.2" {
		t.Errorf("machine %s", got)
	}
}
