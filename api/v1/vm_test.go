package v1

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
)

func validVM(t *testing.T) *VirtualMachine {
	t.Helper()
	return &VirtualMachine{Spec: VirtualMachineSpec{RunStrategy: ptr.To(RunStrategyAlways),
		Template: VirtualMachineInstanceTemplateSpec{Spec: parse(t, valid).Spec}}}
}

func TestValidateVirtualMachine(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*VirtualMachine)
		want string // a part of the only error; empty: none
	}{
		"valid":        {func(*VirtualMachine) {}, ""},
		"running":      {func(vm *VirtualMachine) { vm.Spec.Running, vm.Spec.RunStrategy = ptr.To(true), nil }, ""},
		"both":         {func(vm *VirtualMachine) { vm.Spec.Running = ptr.To(false) }, "spec.running: Forbidden"},
		"neither":      {func(vm *VirtualMachine) { vm.Spec.RunStrategy = nil }, "spec.runStrategy: Required"},
		"receiver":     {func(vm *VirtualMachine) { vm.Spec.RunStrategy = ptr.To[VirtualMachineRunStrategy]("WaitAsReceiver") }, "spec.runStrategy: Unsupported"},
		"instancetype": {func(vm *VirtualMachine) { vm.Spec.Instancetype = &InstancetypeMatcher{} }, "spec.instancetype: Invalid value: \"\": either name or inferFromVolume must be set"},
		"preference":   {func(vm *VirtualMachine) { vm.Spec.Preference = &PreferenceMatcher{} }, "spec.preference: Invalid value: \"\": either name or inferFromVolume must be set"},
		"data volumes": {func(vm *VirtualMachine) { vm.Spec.DataVolumeTemplates = make([]DataVolumeTemplate, 33) }, "spec.dataVolumeTemplates: Too many"},
		"replacement":  {func(vm *VirtualMachine) { vm.Spec.UpdateVolumesStrategy = ptr.To(UpdateVolumesStrategyReplacement) }, ""},
		"volumes": {func(vm *VirtualMachine) { vm.Spec.UpdateVolumesStrategy = ptr.To[UpdateVolumesStrategy]("Other") },
			"spec.updateVolumesStrategy: Unsupported"},
		"label": {func(vm *VirtualMachine) { vm.Spec.Template.ObjectMeta.Labels = map[string]string{"a": "not a value"} }, "spec.template.metadata.labels"},
		"annotation": {func(vm *VirtualMachine) { vm.Spec.Template.ObjectMeta.Annotations = map[string]string{"not a key": ""} },
			"spec.template.metadata.annotations"},
		"no memory": {func(vm *VirtualMachine) { vm.Spec.Template.Spec.Domain.Resources = ResourceRequirements{} }, ""},
		"metrics":   {func(vm *VirtualMachine) { vm.Spec.Template.Spec.Domain.Devices.DownwardMetrics = &Unsupported{} }, "spec.template.spec.domain.devices.downwardMetrics: Forbidden"},
	} {
		vm := validVM(t)
		c.edit(vm)
		before := vm.DeepCopy()
		errs := ValidateVirtualMachine(vm)
		switch {
		case c.want == "" && len(errs) > 0:
			t.Errorf("%s: %v", name, errs)
		case c.want != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), c.want)):
			t.Errorf("%s: %v, want %q alone", name, errs, c.want)
		}
		if diff := cmp.Diff(before, vm); diff != "" {
			t.Errorf("%s: the VM was changed: %s", name, diff)
		}
	}
}

func TestRunStrategyOfVM(t *testing.T) {
	for want, spec := range map[VirtualMachineRunStrategy]VirtualMachineSpec{
		RunStrategyAlways: {Running: ptr.To(true)},
		RunStrategyHalted: {Running: ptr.To(false)},
		RunStrategyManual: {RunStrategy: ptr.To(RunStrategyManual)},
	} {
		if got := (&VirtualMachine{Spec: spec}).Strategy(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if got := (&VirtualMachine{}).Strategy(); got != RunStrategyHalted {
		t.Errorf("%s of one that says nothing", got)
	}
}
