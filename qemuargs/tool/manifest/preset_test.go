package manifest

import (
	"fmt"
	"strings"
	"testing"
)

const (
	presetCPU = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstancePreset\nmetadata: {name: two}\nspec:\n  selector: {matchLabels: {size: two}}\n  domain: {cpu: {cores: 2}, clock: {timer: {hpet: {present: false}}}}\n---\n"
	labels    = "metadata: {labels: {size: two}}"
)

// selected are manifests with presets beside them, by their kinds. Each starts on line 8.
var selected = map[string]string{
	"VMI":        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: a, labels: {size: two}}\nspec: {domain: {memory: {guest: 64Mi}}}\n",
	"VM":         "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: a}\nspec: {runStrategy: Halted, template: {" + labels + ", spec: {domain: {memory: {guest: 64Mi}}}}}\n",
	"ReplicaSet": "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstanceReplicaSet\nmetadata: {name: a}\nspec: {selector: {matchLabels: {size: two}}, template: {" + labels + ", spec: {domain: {memory: {guest: 64Mi}}}}}\n",
	"pool": "apiVersion: pool.kubevirt.io/v1beta1\nkind: VirtualMachinePool\nmetadata: {name: a}\nspec: {selector: {matchLabels: {a: b}}, virtualMachineTemplate: {metadata: {labels: {a: b}}, spec: {runStrategy: Halted, template: {" +
		labels + ", spec: {domain: {memory: {guest: 64Mi}}}}}}}\n",
}

// TestPresetFillsInSelectedVMIs: a preset in the input fills in the VMIs that it selects, of every kind, and the
// lineage names it.
func TestPresetFillsInSelectedVMIs(t *testing.T) {
	for kind, text := range selected {
		l := lineageOf(t, presetCPU+text)
		for field, want := range map[string]string{
			"spec.domain.cpu.cores":                `2 preset "two" 4`,
			"spec.domain.clock.timer.hpet.present": `false preset "two" 4`,
			"spec.domain.cpu.sockets":              "1 " + Default + " 0",
			"spec.domain.firmware.uuid":            `"` + UID + `"`,
		} {
			if o, ok := l.Of(field); !ok || !strings.HasPrefix(fmt.Sprintf("%s %s %d", o.Value, o.By, o.Line), want) {
				t.Errorf("%s: %s: %+v, want %s", kind, field, o, want)
			}
		}
		if o, ok := l.Of("spec.domain.memory.guest"); !ok || o.By != "" {
			t.Errorf("%s: memory %+v", kind, o)
		}
		for why, without := range map[string]string{
			"another namespace": strings.Replace(presetCPU, "{name: two}", "{name: two, namespace: red}", 1),
			"another label":     strings.Replace(presetCPU, "size: two", "size: three", 1),
		} {
			if o, _ := lineageOf(t, without+text).Of("spec.domain.cpu.cores"); o.By != Default {
				t.Errorf("%s, %s: %+v", kind, why, o)
			}
		}
		excluded := strings.Replace(text, "labels: {size: two}", `annotations: {virtualmachineinstancepresets.admission.kubevirt.io/exclude: "true"}, labels: {size: two}`, 1)
		if o, _ := lineageOf(t, presetCPU+excluded).Of("spec.domain.cpu.cores"); o.By != Default {
			t.Errorf("%s, excluded: %+v", kind, o)
		}
	}
	own := strings.Replace(selected["VM"], "memory:", "cpu: {cores: 3}, memory:", 1)
	l := lineageOf(t, presetCPU+own)
	if o, _ := l.Of("spec.domain.cpu.cores"); o.Value != "3" || o.By != "" {
		t.Errorf("the VM's own cores: %+v", o)
	}
	if o, _ := l.Of("spec.domain.clock.timer.hpet.present"); o.By != `preset "two"` {
		t.Errorf("what the VM leaves out: %+v", o)
	}
}

// TestPresetErrorsNameTheDocument: errors name the document that is to be changed.
func TestPresetErrorsNameTheDocument(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"invalid": {strings.Replace(presetCPU, "cores: 2", "cores: 2000", 1) + selected["VM"], `x.yaml:6: VirtualMachineInstancePreset "two": spec.domain.cpu: Invalid value`},
		"unknown": {strings.Replace(presetCPU, "cores: 2", "cors: 2", 1) + selected["VM"], `x.yaml:6: VirtualMachineInstancePreset "two": unknown field "spec.domain.cpu.cors"`},
		"disks":   {strings.Replace(presetCPU, "cpu: {cores: 2}", "devices: {disks: [{name: a}]}", 1) + selected["VM"], `spec.domain.devices.disks: Forbidden: a preset cannot set it`},
		"conflict": {presetCPU + strings.NewReplacer("name: two", "name: four", "cores: 2", "cores: 4").Replace(presetCPU) + selected["VM"],
			`x.yaml:18: VirtualMachine "a": spec.template.spec.domain.cpu: Invalid value`},
	} {
		set, err := Read("x.yaml", strings.NewReader(c.text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := set.Instances(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestVMsAreNotLookedUpAmongVMs: what VMs name is looked up among the other documents. Among all, the time would grow
// with the square of the VMs.
func TestVMsAreNotLookedUpAmongVMs(t *testing.T) {
	set, err := Read("x.yaml", strings.NewReader(presetCPU+selected["VM"]+"---\n"+strings.ReplaceAll(selected["VM"], "name: a", "name: b")))
	if err != nil {
		t.Fatal(err)
	}
	if rest := set.rest(); len(set) != 3 || len(rest) != 1 || rest[0].Kind != "VirtualMachineInstancePreset" {
		t.Errorf("of %d documents %d are looked at: %v", len(set), len(rest), rest)
	}
}
