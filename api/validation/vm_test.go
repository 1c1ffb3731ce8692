package validation

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func validVM(t *testing.T) *v1.VirtualMachine {
	t.Helper()
	return &v1.VirtualMachine{Spec: v1.VirtualMachineSpec{RunStrategy: ptr.To(v1.RunStrategyAlways),
		Template: v1.VirtualMachineInstanceTemplateSpec{Spec: parse(t, valid).Spec}}}
}

func TestValidateVirtualMachine(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*v1.VirtualMachine)
		want string // a part of the only error; empty: none
	}{
		"valid":   {func(*v1.VirtualMachine) {}, ""},
		"running": {func(vm *v1.VirtualMachine) { vm.Spec.Running, vm.Spec.RunStrategy = ptr.To(true), nil }, ""},
		"both":    {func(vm *v1.VirtualMachine) { vm.Spec.Running = ptr.To(false) }, "spec.running: Forbidden"},
		"neither": {func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = nil }, "spec.runStrategy: Required"},
		"receiver": {func(vm *v1.VirtualMachine) {
			vm.Spec.RunStrategy = ptr.To[v1.VirtualMachineRunStrategy]("WaitAsReceiver")
		}, "spec.runStrategy: Unsupported"},
		"instancetype": {func(vm *v1.VirtualMachine) { vm.Spec.Instancetype = &v1.InstancetypeMatcher{} },
			"spec.instancetype: Invalid value: \"\": either name or inferFromVolume must be set"},
		"preference": {func(vm *v1.VirtualMachine) { vm.Spec.Preference = &v1.PreferenceMatcher{} },
			"spec.preference: Invalid value: \"\": either name or inferFromVolume must be set"},
		"data volumes": {func(vm *v1.VirtualMachine) { vm.Spec.DataVolumeTemplates = make([]v1.DataVolumeTemplate, 33) },
			"spec.dataVolumeTemplates: Too many"},
		"replacement": {func(vm *v1.VirtualMachine) {
			vm.Spec.UpdateVolumesStrategy = ptr.To(v1.UpdateVolumesStrategyReplacement)
		}, ""},
		"volumes": {func(vm *v1.VirtualMachine) { vm.Spec.UpdateVolumesStrategy = ptr.To[v1.UpdateVolumesStrategy]("Other") },
			"spec.updateVolumesStrategy: Unsupported"},
		"label": {func(vm *v1.VirtualMachine) {
			vm.Spec.Template.ObjectMeta.Labels = map[string]string{"a": "not a value"}
		}, "spec.template.metadata.labels"},
		"annotation": {func(vm *v1.VirtualMachine) {
			vm.Spec.Template.ObjectMeta.Annotations = map[string]string{"not a key": ""}
		},
			"spec.template.metadata.annotations"},
		"no memory": {func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Domain.Resources = v1.ResourceRequirements{} }, ""},
		"metrics": {func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Devices.DownwardMetrics = &v1.Unsupported{}
		}, "spec.template.spec.domain.devices.downwardMetrics: Forbidden"},
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

func parsedVM(t *testing.T, text string) *v1.VirtualMachine {
	t.Helper()
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "ns",
		UID: "5d307ca9-b3ef-428c-8861-06e72d69f223", Generation: 3}}
	if err := json.Unmarshal([]byte(text), &vm.Spec); err != nil {
		t.Fatal(err)
	}
	return vm
}
