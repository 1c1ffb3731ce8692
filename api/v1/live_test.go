package v1

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestWhichTemplateChangesNeedARestart: which changes of a template need a restart, and which a running guest follows.
func TestWhichTemplateChangesNeedARestart(t *testing.T) {
	migratable := VirtualMachineInstanceCondition{Type: ConditionLiveMigratable, Status: metav1.ConditionTrue}
	bridged := VirtualMachineInstanceCondition{Type: ConditionLiveMigratable, Status: metav1.ConditionFalse}
	bridged.Message = "the pod's address"
	moves := func(vm *VirtualMachine) { vm.Spec.Template.Spec.NodeSelector = map[string]string{"rack": "2"} }
	grows := func(vm *VirtualMachine) { vm.Spec.Template.Spec.Hostname = "other" }
	both := func(vm *VirtualMachine) { moves(vm); grows(vm) }
	sized := func(vm *VirtualMachine) {
		both(vm)
		vm.Spec.Instancetype = &InstancetypeMatcher{Name: "small"}
	}
	for what, c := range map[string]struct {
		edit       func(*VirtualMachine)
		phase      VirtualMachineInstancePhase
		conditions []VirtualMachineInstanceCondition
		rollout    RolloutStrategy
		staged     string
		follows    bool
	}{
		"nothing changed": {func(*VirtualMachine) {}, Running, nil, RolloutLiveUpdate, "", false},
		"placement": {moves, Running, []VirtualMachineInstanceCondition{migratable}, RolloutLiveUpdate,
			"", true},
		"placement, Stage": {moves, Running, []VirtualMachineInstanceCondition{migratable}, RolloutStage,
			"nodeSelector (the cluster's vmRolloutStrategy is Stage); this holds from the next start on", false},
		"placement, bridged": {moves, Running, []VirtualMachineInstanceCondition{bridged}, RolloutLiveUpdate,
			"the guest cannot migrate: the pod's address", false},
		"placement, unknown": {moves, Running, nil, RolloutLiveUpdate, "not known yet", false},
		"placement, starting": {moves, Scheduling, []VirtualMachineInstanceCondition{migratable},
			RolloutLiveUpdate, "does not run yet", false},
		"placement, ended": {moves, Succeeded, []VirtualMachineInstanceCondition{migratable}, RolloutLiveUpdate,
			"", false},
		"another field": {grows, Running, []VirtualMachineInstanceCondition{migratable}, RolloutLiveUpdate,
			"the template was changed: hostname is new; this holds from the next start on: virtctl restart web",
			false},
		"both": {both, Running, []VirtualMachineInstanceCondition{migratable}, RolloutLiveUpdate,
			"the template was changed: hostname is new;", true},
		"both, an instancetype": {sized, Running, []VirtualMachineInstanceCondition{migratable}, RolloutLiveUpdate,
			"hostname is new; instancetype; nodeSelector (the instancetype was changed, too, and may bring", false},
	} {
		vm := changedVM()
		vm.Spec.RunStrategy = ptr.To(RunStrategyAlways)
		vmi := vm.Instance(plain, false)
		Default(vmi)
		vmi.Status.Phase, vmi.Status.Conditions = c.phase, c.conditions
		vm.Generation++
		c.edit(vm)
		live := vm.Live(vmi, &KubeVirtConfiguration{VMRolloutStrategy: &c.rollout})
		if got := live.RestartRequired(vm); (got == "") != (c.staged == "") || !strings.Contains(got, c.staged) {
			t.Errorf("%s: staged %q, want %q", what, got, c.staged)
		}
		if got := slices.Contains(live.Taken, "nodeSelector"); got != c.follows {
			t.Errorf("%s: follows %v", what, got)
		}
		next := live.Follow(vm, vm, vmi)
		if c.follows && (next.Spec.NodeSelector["rack"] != "2" || next.Spec.Hostname != "") {
			t.Errorf("%s: the guest's spec is %+v", what, next.Spec)
		}
		current := next.Annotations[VMGenerationAnnotation] == strconv.FormatInt(vm.Generation, 10)
		if current != (c.staged == "" && !live.Behind) {
			t.Errorf("%s: the guest's generation is %s", what, next.Annotations[VMGenerationAnnotation])
		}
		if again := vm.Live(next, plain); len(again.Taken) != 0 && c.rollout == RolloutLiveUpdate {
			t.Errorf("%s: it follows once more: %+v", what, again)
		}
	}
}
