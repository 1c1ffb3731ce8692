package resolve

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWhetherAPathNamesAField(t *testing.T) {
	for _, c := range []struct {
		path, field string
		want        bool
	}{
		{"spec.domain.cpu.cores", "spec.domain.cpu.cores", true},
		{"spec.domain.cpu.cores", "spec.domain.cpu", true},
		{"spec.domain.cpu", "spec.domain.cpu.cores", false},
		{"spec.domain.cpu", "spec.domain.cp", false},
		{"spec.disks[*].bus", "spec.disks[7].bus", true},
		{"spec.disks[7].bus", "spec.disks[*].bus", true},
		{"spec.disks[0-2].bus", "spec.disks[2]", true},
		{"spec.disks[0-2].bus", "spec.disks[3]", false},
		{"spec.disks[0].bus", "spec.disks", true},
		{"spec.disks[0].bus", "spec.disks[1]", false},
		{"spec.disks[0-2].bus", "spec.disks[root]", false},
		{"nics[a.b].mtu", "nics[a.b]", true},
		{"nics[a.b].mtu", "nics[a]", false},
		{"a[", "a", true},
		{"", "a", false},
	} {
		if got := Names(c.path, c.field); got != c.want {
			t.Errorf("%q names %q: %t", c.path, c.field, got)
		}
	}
}

// TestExplainedMachineIsTheSame: who asks for the decisions gets the same machine.
func TestExplainedMachineIsTheSame(t *testing.T) {
	for _, dir := range cases(t, machineCases) {
		vmi, host := load(t, dir, hosts[1])
		machine, errs := Machine(vmi, host)
		asked, _, askedErrs := Explained(vmi, host)
		if diff := cmp.Diff(machine, asked); diff != "" || len(errs)+len(askedErrs) > 0 {
			t.Errorf("%s: %v, %v, %s", dir, errs, askedErrs, diff)
		}
	}
}

// TestUnaskedDecisionsCostNothing: decisions cost nothing where nobody asks for them.
func TestUnaskedDecisionsCostNothing(t *testing.T) {
	var nobody *Decisions
	by := entry{to: nobody, list: "disks", name: "root", field: diskList, index: 3}
	if n := testing.AllocsPerRun(100, func() {
		nobody.add("cpu.cores", "spec.domain.cpu.cores", "")
		by.add("queues", ".disk.bus "+vcpus, oneQueuePerCPU)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
