package v1

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// changedVM returns a VM of two CPUs, with a disk and an interface.
func changedVM() *VirtualMachine {
	vm := &VirtualMachine{}
	vm.Name, vm.Namespace, vm.UID = "web", "ns", "u"
	spec := &vm.Spec.Template.Spec
	spec.Domain.CPU = &CPU{Cores: 2}
	spec.Domain.Memory = &Memory{Guest: ptr.To(resource.MustParse("1Gi"))}
	spec.Domain.Devices.Disks = []Disk{{Name: "root", Disk: &DiskTarget{Bus: DiskBusVirtio}},
		{Name: "seed", Disk: &DiskTarget{}}}
	spec.Domain.Devices.Interfaces = []Interface{{Name: "default", Masquerade: &InterfaceMasquerade{}}}
	spec.Networks = []Network{{Name: "default", Pod: &PodNetwork{}}}
	spec.Volumes = []Volume{{Name: "root", ContainerDisk: &ContainerDiskSource{Image: "debian:13"}},
		{Name: "seed", CloudInitNoCloud: &CloudInitNoCloudSource{UserData: "a"}}}
	return vm
}

// TestChangedFieldsAreNamed: each field that differs from the running guest's is named by its path, with both values
// where they are short and no secrets. A field that the guest follows is not named, nor is one whose value is only
// written in another way.
func TestChangedFieldsAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*VirtualMachine)
		want   string
	}{
		"nothing": {func(*VirtualMachine) {}, ""},
		"said anew": {func(vm *VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Memory.Guest = ptr.To(resource.MustParse("1024Mi"))
		}, ""},
		"the default": {func(vm *VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU.Sockets = 1 }, ""},
		"a number":    {func(vm *VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU.Cores = 4 }, "domain.cpu.cores: 2 → 4"},
		"a quantity": {func(vm *VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Memory.Guest = ptr.To(resource.MustParse("2Gi"))
		},
			"domain.memory.guest: 1Gi → 2Gi"},
		"a device": {func(vm *VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Devices.TPM = &TPMDevice{}
		}, "domain.devices.tpm is new"},
		"a disk that is named": {func(vm *VirtualMachine) { vm.Spec.Template.Spec.Domain.Devices.Disks[0].Serial = "s" },
			"domain.devices.disks[root].serial is new"},
		"a disk in another place": {func(vm *VirtualMachine) {
			spec := &vm.Spec.Template.Spec
			spec.Domain.Devices.Disks = append([]Disk{{Name: "data", Disk: &DiskTarget{Bus: DiskBusSCSI}}},
				spec.Domain.Devices.Disks...)
			empty := &EmptyDiskSource{Capacity: resource.MustParse("1Gi")}
			spec.Volumes = append(spec.Volumes, Volume{Name: "data", EmptyDisk: empty})
		}, "domain.devices.disks[data] is new; volumes[data] is new"},
		"a secret": {func(vm *VirtualMachine) { vm.Spec.Template.Spec.Volumes[1].CloudInitNoCloud.UserData = "password" },
			"volumes[seed].cloudInitNoCloud.userData"},
		"a machine type that the first start found out": {func(vm *VirtualMachine) {
			vm.Annotations = map[string]string{MachineTypeAnnotation: "pc-q35-11.1"}
		}, ""},
		"what holds anyway": {func(vm *VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Devices.DisableHotplug = ptr.To(false)
		}, ""},
		"a key of the kernel": {func(vm *VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Chassis = &Chassis{Serial: "secret"}
		}, "domain.chassis is new"},
		"what is gone": {func(vm *VirtualMachine) {
			spec := &vm.Spec.Template.Spec
			spec.Volumes, spec.Domain.Devices.Disks = spec.Volumes[:1], spec.Domain.Devices.Disks[:1]
		}, "domain.devices.disks[seed] is gone; volumes[seed] is gone"},
		"placement": {func(vm *VirtualMachine) { vm.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"} }, ""},
		"a link":    {func(vm *VirtualMachine) { vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].State = LinkDown }, ""},
	} {
		vm := changedVM()
		vmi := vm.willing(nil)
		old := vm.DeepCopy()
		c.change(vm)
		if got := vm.Live(vmi, nil).Staged.String(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got := vm.Since(old, nil).String(); got != c.want {
			t.Errorf("%s: since then %q, want %q", name, got, c.want)
		}
	}
}

// TestChangedFieldsAreBounded: eight fields are named, and the others counted. With an instancetype, what it
// fills in is not taken for a change.
func TestChangedFieldsAreBounded(t *testing.T) {
	vm := changedVM()
	vmi := vm.Instance(&KubeVirtConfiguration{}, false)
	Default(vmi)
	for i := range 100 {
		vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes, Volume{Name: strings.Repeat("v", i+1)})
	}
	got := vm.Live(vmi, nil).Staged.String()
	if !strings.HasSuffix(got, "; and 92 more") || strings.Count(got, ";") != 8 {
		t.Errorf("%q", got)
	}
	typed := changedVM()
	typed.Spec.Instancetype = &InstancetypeMatcher{Name: "small"}
	typed.Spec.Template.Spec.Domain.CPU, typed.Spec.Template.Spec.Domain.Memory = nil, nil
	typed.Spec.Template.Spec.Hostname = "other"
	if got := typed.Live(vmi, nil).Staged; len(got) != 4 {
		t.Errorf("with an instancetype: %v", got)
	}
	before := typed.DeepCopy()
	typed.Spec.Instancetype = &InstancetypeMatcher{Name: "large"}
	isSize := func(c FieldChange) bool { return c.Path == "instancetype" }
	if got := typed.Since(before, nil); !slices.ContainsFunc(got, isSize) {
		t.Errorf("another instancetype: %v", got)
	}
}
