package admission

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestChangeThatWaitsForARestartIsWarnedOf: whoever changes the template of a guest that runs is told which
// fields wait, and what to do. A guest that does not run, and a change that the guest follows, make no warning.
func TestChangeThatWaitsForARestartIsWarnedOf(t *testing.T) {
	machine := func(created bool) *v1.VirtualMachine {
		vm := &v1.VirtualMachine{}
		vm.Name, vm.Status.Created = "web", created
		vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
		vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Cores: 2}
		return vm
	}
	const want = "a guest that runs takes this at its next start (virtctl restart web, or kubectl delete vmi web): " +
		"domain.cpu.cores: 2 → 4"
	for name, c := range map[string]struct {
		old    *v1.VirtualMachine
		change func(*v1.VirtualMachine)
		want   string
	}{
		"running": {machine(true), func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU.Cores = 4 }, want},
		"stopped": {machine(false), func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU.Cores = 4 }, ""},
		"halted": {machine(true), func(vm *v1.VirtualMachine) {
			vm.Spec.RunStrategy, vm.Spec.Template.Spec.Domain.CPU.Cores = ptr.To(v1.RunStrategyHalted), 4
		}, ""},
		"new": {nil, func(*v1.VirtualMachine) {}, ""},
		"placement": {machine(true), func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"}
		}, ""},
	} {
		vm := machine(true)
		c.change(vm)
		if got := strings.Join(warnStaged(vm, c.old, nil), "\n"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
