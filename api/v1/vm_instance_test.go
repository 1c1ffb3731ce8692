package v1

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
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
	if h := draft.Annotations[TemplateHashAnnotation]; h != vm.TemplateHash() {
		t.Errorf("the template's hash is %s, want %s", h, vm.TemplateHash())
	}
	vm.Spec.Template.Spec.Domain.Machine.Type = "q35"
	vm.Spec.Template.Spec.Domain.Firmware = &Firmware{UUID: "named", Serial: "0815"}
	if vmi := vm.Instance(plain, false); vmi.Spec.Domain.Machine.Type != "q35" ||
		*vmi.Spec.Domain.Firmware != *vm.Spec.Template.Spec.Domain.Firmware {
		t.Errorf("machine %+v, firmware %+v: not what the template names", vmi.Spec.Domain.Machine, vmi.Spec.Domain.Firmware)
	}
}

// TestTemplateHash: what says the same has the same hash, in every version. If
// this one changes, a running guest of an earlier version looks outdated: a
// field was added to the API that is written although it is not set.
func TestTemplateHash(t *testing.T) {
	vm := parsedVM(t, specText)
	if got, want := vm.TemplateHash(), "968223b35805b3c6"; got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
	for what, edit := range map[string]func(*VirtualMachine){
		"run strategy": func(vm *VirtualMachine) { vm.Spec.RunStrategy = ptr.To(RunStrategyHalted) },
		"labels":       func(vm *VirtualMachine) { vm.Spec.Template.ObjectMeta.Labels = nil },
		"1024Mi":       func(vm *VirtualMachine) { vm.Spec.Template.Spec.Domain.Memory = memory(t, "1024Mi") },
		"what holds anyway": func(vm *VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Devices.DisableHotplug = ptr.To(false)
			vm.Spec.Template.Spec.Domain.Resources.OvercommitGuestOverhead = ptr.To(false)
		},
		"placement": func(vm *VirtualMachine) {
			vm.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"}
			vm.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}}
			vm.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "c"}}
		},
	} {
		edited := vm.DeepCopy()
		edit(edited)
		if edited.TemplateHash() != vm.TemplateHash() {
			t.Errorf("%s: another hash", what)
		}
	}
	for what, edit := range map[string]func(*VirtualMachineInstanceSpec){
		"memory": func(s *VirtualMachineInstanceSpec) { s.Domain.Memory = memory(t, "2Gi") },
		"image":  func(s *VirtualMachineInstanceSpec) { s.Volumes[0].ContainerDisk.Image = "example.com/disk:2" },
		"grace":  func(s *VirtualMachineInstanceSpec) { s.TerminationGracePeriodSeconds = ptr.To[int64](0) },
	} {
		edited := vm.DeepCopy()
		edit(&edited.Spec.Template.Spec)
		if edited.TemplateHash() == vm.TemplateHash() {
			t.Errorf("%s: not another hash", what)
		}
	}
}

// TestMetadataHash: the hash of a template's labels and annotations is theirs alone, and that of a pool's revision is
// none of them. As with TestTemplateHash, running guests look outdated if this one changes.
func TestMetadataHash(t *testing.T) {
	vm := parsedVM(t, specText)
	vm.Spec.Template.ObjectMeta = TemplateMeta{Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"c": "d"}}
	if got, want := vm.MetadataHash(), "d29f0ea20aa17f8c"; got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
	vmi := vm.Draft(false)
	for what, c := range map[string]struct {
		edit func(*VirtualMachine)
		has  bool
	}{
		"nothing":             {func(*VirtualMachine) {}, true},
		"the spec":            {func(vm *VirtualMachine) { vm.Spec.Template.Spec.Hostname = "x" }, true},
		"the VM's own labels": {func(vm *VirtualMachine) { vm.Labels = map[string]string{"e": "f"} }, true},
		"a pool's revision": {func(vm *VirtualMachine) { vm.Spec.Template.ObjectMeta.Labels[PoolRevisionLabel] = "web-1" },
			true},
		"what follows into the guest's objects": {func(vm *VirtualMachine) {
			vm.Spec.Template.ObjectMeta.Annotations["descheduler.alpha.kubernetes.io/prefer-no-eviction"] = ""
		}, true},
		"a label":       {func(vm *VirtualMachine) { vm.Spec.Template.ObjectMeta.Labels["e"] = "f" }, false},
		"no labels":     {func(vm *VirtualMachine) { vm.Spec.Template.ObjectMeta.Labels = nil }, false},
		"an annotation": {func(vm *VirtualMachine) { vm.Spec.Template.ObjectMeta.Annotations["c"] = "e" }, false},
		"a label that becomes an annotation": {func(vm *VirtualMachine) {
			vm.Spec.Template.ObjectMeta = TemplateMeta{Annotations: map[string]string{"a": "b", "c": "d"}}
		}, false},
	} {
		edited := vm.DeepCopy()
		if c.edit(edited); edited.HasMetadata(vmi) != c.has {
			t.Errorf("%s: that the guest was made with it is %v", what, !c.has)
		}
	}
	bare := parsedVM(t, specText)
	bare.Spec.Template.ObjectMeta = TemplateMeta{Labels: map[string]string{}}
	if made := bare.Draft(false); !bare.HasMetadata(made) || made.Annotations[MetadataHashAnnotation] == "" {
		t.Error("a template without labels has not its own hash")
	}
	if !vm.HasMetadata(&VirtualMachineInstance{}) {
		t.Error("a guest of which nothing is known is outdated")
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
