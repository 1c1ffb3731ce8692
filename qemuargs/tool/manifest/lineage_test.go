package manifest

import (
	"fmt"
	"strings"
	"testing"
)

// lineageOf returns the lineage of the only VMI of a manifest.
func lineageOf(t *testing.T, text string) *Lineage {
	t.Helper()
	set, err := Read("x.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	instances, err := set.Instances()
	if err != nil || len(instances) != 1 {
		t.Fatalf("%d VMIs, %v", len(instances), err)
	}
	return instances[0].Lineage()
}

// TestLineageOfManyFields: a VMI is not defaulted once for each annotation and each volume:
// the budget would be spent before the names of the volumes are tried.
func TestLineageOfManyFields(t *testing.T) {
	var annotations, volumes strings.Builder
	for n := range 2000 {
		fmt.Fprintf(&annotations, "    team.example.com/a%d: x\n", n)
	}
	for n := range 190 {
		fmt.Fprintf(&volumes, "  - {name: v%d, emptyDisk: {capacity: 1Mi}}\n", n)
	}
	l := lineageOf(t, "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata:\n  name: a\n  annotations:\n"+annotations.String()+
		"spec:\n  domain: {resources: {requests: {memory: 64Mi}}}\n  volumes:\n"+volumes.String())
	for field, want := range map[string]string{
		"spec.domain.memory.guest":            "spec.domain.resources.requests.memory",
		"spec.domain.devices.disks[189].name": "spec.volumes[189].name",
	} {
		if from := l.From(field); len(from) != 1 || from[0] != want {
			t.Errorf("%s is made of %v, want %s", field, from, want)
		}
	}
}

// TestOriginOfInstancetype: the document of the instancetype that the VM names, not that of
// another with its name.
func TestOriginOfInstancetype(t *testing.T) {
	const vm = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata:\n  name: a\n  annotations: {kubeqemu.io/machine-type: pc-q35-10.0}\n" +
		"spec: {runStrategy: Halted, instancetype: {name: small}, preference: {name: small}, template: {spec: {domain: {devices: {}}}}}\n---\n"
	const api = "apiVersion: instancetype.kubevirt.io/v1beta1\nmetadata: {name: small, namespace: other}\n"
	const size, preference = "spec: {cpu: {guest: 1}, memory: {guest: 64Mi}}\n---\n", "spec: {cpu: {preferredCPUTopology: cores}, devices: {preferredRng: {}}}\n---\n"
	l := lineageOf(t, vm+api+"kind: VirtualMachineClusterInstancetype\n"+size+api+"kind: VirtualMachineInstancetype\n"+size+
		api+"kind: VirtualMachineClusterPreference\n"+preference+api+"kind: VirtualMachinePreference\n"+preference)
	for field, want := range map[string]string{
		"spec.domain.memory.guest":               `instancetype "small" 11`,
		"spec.domain.devices.rng":                `preference "small" 21`,
		"spec.domain.machine.type":               "annotation kubeqemu.io/machine-type 5",
		"spec.domain.devices.interfaces[0].name": Default + " 0",
		"spec.domain.firmware.uuid":              OfUID + " 0",
		"metadata.name":                          " 4",
	} {
		if o, ok := l.Of(field); !ok || fmt.Sprintf("%s %d", o.By, o.Line) != want {
			t.Errorf("%s: %+v, want %s", field, o, want)
		}
	}
}

// TestOriginOfPoolsName: no line of a pool says the name of its first VM.
func TestOriginOfPoolsName(t *testing.T) {
	l := lineageOf(t, "apiVersion: pool.kubevirt.io/v1beta1\nkind: VirtualMachinePool\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {a: b}}\n  virtualMachineTemplate:\n    metadata: {labels: {a: b}}\n"+
		"    spec: {runStrategy: Always, template: {spec: {domain: {memory: {guest: 64Mi}}}}}\n")
	if o, _ := l.Of("metadata.name"); o.Value != `"web-0"` || o.By != "the pool's first VM" || o.Line != 3 {
		t.Errorf("%+v", o)
	}
}
