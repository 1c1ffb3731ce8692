package vm

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	sigsyaml "sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func (s subject) preset(name string, domain v1.DomainSpec) *v1.VirtualMachineInstancePreset {
	s.t.Helper()
	p := &v1.VirtualMachineInstancePreset{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace},
		Spec: v1.VirtualMachineInstancePresetSpec{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"kubevirt.io/vm": "vm"}}, Domain: &domain}}
	if err := s.client.Create(ctx, p); err != nil {
		s.t.Fatal(err)
	}
	return p
}

// preset: a VM's VMI gets what the presets of its namespace say, before it gets its identity. No preset makes
// the VM look changed.
func preset(s subject) {
	small := s.preset("small", v1.DomainSpec{CPU: &v1.CPU{Cores: 2}, Firmware: &v1.Firmware{Serial: "x1"},
		Memory: &v1.Memory{}})
	other := s.preset("other", v1.DomainSpec{CPU: &v1.CPU{Cores: 4}})
	s.create(v1.RunStrategyAlways)
	if c := s.awaitCondition(v1.ConditionFailure, "PresetFailed"); !strings.Contains(c.Message, `spec.domain.cpu: Invalid value: "{\"cores\":4}": the VirtualMachineInstancePresets "other" and "small" both select`) {
		s.t.Errorf("condition %+v", c)
	}
	s.none()
	if err := s.client.Delete(ctx, other); err != nil {
		s.t.Fatal(err)
	}
	// Not by the template: the VM may have been tried again already.
	waiting := s.vm()
	s.change(waiting, func() { waiting.Labels = map[string]string{"look": "now"} })
	vmi := s.firstVMI()
	if !controllerutil.ContainsFinalizer(vmi, v1.VMIFinalizer) {
		s.t.Error("nothing says that the VMI has been through its presets")
	}
	if d := vmi.Spec.Domain; d.CPU == nil || d.CPU.Cores != 2 || d.Firmware.Serial != "x1" ||
		d.Firmware.UUID != string(s.vm().UID) || vmi.Annotations[v1.PresetAnnotation+"small"] != "kubevirt.io/v1" {
		s.t.Errorf("CPU %+v, firmware %+v, annotations %v", d.CPU, d.Firmware, vmi.Annotations)
	}
	s.goes(vmi, v1.Running)
	s.is(v1.VirtualMachineStatusRunning)

	// A preset that changes is for the next start.
	s.change(small, func() { small.Spec.Domain.CPU.Cores = 3 })
	before := s.vm()
	s.change(before, func() { before.Labels = map[string]string{"look": "again"} })
	s.is(v1.VirtualMachineStatusRunning)
	if c := s.vm().Status.Condition(v1.ConditionRestartRequired); c != nil {
		s.t.Errorf("condition %+v", c)
	}
	s.goes(vmi, v1.Failed)
	s.stopped(vmi)
	if again := s.vmi(vmi.UID); again.Spec.Domain.CPU.Cores != 3 {
		s.t.Errorf("CPU %+v", again.Spec.Domain.CPU)
	}
}

// firstVMI waits for the VM's VMI, as the API server has it.
func (s subject) firstVMI() *v1.VirtualMachineInstance {
	s.t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	until(s.t, func() error { return s.client.Get(ctx, s.key(), vmi) })
	return vmi
}

// manyPresets: more presets than are read keep a VM from starting, in their namespace alone. The VM starts once
// its user has done what the error advises.
func manyPresets(s subject) {
	for n := range v1.MaxPresets + 1 {
		s.preset(fmt.Sprint("p", n), v1.DomainSpec{})
	}
	s.create(v1.RunStrategyAlways)
	if c := s.awaitCondition(v1.ConditionFailure, "PresetFailed"); !strings.Contains(c.Message, fmt.Sprintf("the namespace %q has more than 64 virtualmachineinstancepresets; delete some, or exclude this object", s.namespace)) {
		s.t.Errorf("condition %+v", c)
	}
	s.none()
	elsewhere := s.shared.subject(s.t)
	elsewhere.create(v1.RunStrategyAlways)
	elsewhere.firstVMI()
	vm := s.vm()
	s.change(vm, func() { vm.Spec.Template.ObjectMeta.Annotations[v1.ExcludePresetsAnnotation] = "true" })
	s.firstVMI()
}

// largePresets: presets that are larger together than what is read keep a VM from starting, too.
func largePresets(s subject) {
	for n := range 3 {
		p := s.preset(fmt.Sprint("p", n), v1.DomainSpec{})
		s.change(p, func() { p.Annotations = map[string]string{"big": strings.Repeat("x", 200<<10)} })
	}
	s.create(v1.RunStrategyAlways)
	if c := s.awaitCondition(v1.ConditionFailure, "PresetFailed"); !strings.Contains(c.Message, "have more than 512 KiB") {
		s.t.Errorf("condition %+v", c)
	}
	s.none()
}

// presetSchema: the API server itself refuses a preset without a selector, or with an unknown field. virt-api
// has the other rules (validation.ValidateVirtualMachineInstancePreset).
func presetSchema(s subject) {
	for spec, c := range map[string]struct {
		paths []string
		says  string
	}{
		"{selector: {}, domain: {cpu: {cores: 2}}}": {},
		"{domain: {cpu: {cores: 2}}}":               {[]string{"spec.selector"}, "Required value"},
		"{selector: {}, domain: {colour: red}}":     {[]string{"spec.domain.colour"}, "unknown field"},
	} {
		object := s.object("runStrategy: Always")
		object.SetKind("VirtualMachineInstancePreset")
		var parsed map[string]any
		if err := sigsyaml.Unmarshal([]byte(spec), &parsed); err != nil {
			s.t.Fatal(err)
		}
		object.Object["spec"] = parsed
		err := s.client.Create(ctx, object, client.DryRunAll)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			s.t.Errorf("%s: %v, want %q", spec, err, c.says)
		}
		for _, path := range c.paths {
			if err != nil && !strings.Contains(err.Error(), path) {
				s.t.Errorf("%s: %v, want %q", spec, err, path)
			}
		}
	}
}
