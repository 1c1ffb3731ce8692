package manifest

import (
	"fmt"
	"strings"
	"testing"
)

// lineageOf is the lineage of the only VMI of a manifest.
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
