package vm

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestWhichTemplateChangesNeedARestart: which changes of a template need a restart, and which a running guest follows.
func TestWhichTemplateChangesNeedARestart(t *testing.T) {
	migratable := isTrueFor(v1.ConditionLiveMigratable, "Migratable")
	bridged := isFalseFor(v1.ConditionLiveMigratable, "InterfaceNotLiveMigratable")
	bridged.Message = "the pod's address"
	moves := func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.NodeSelector = map[string]string{"rack": "2"} }
	grows := func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Hostname = "other" }
	both := func(vm *v1.VirtualMachine) { moves(vm); grows(vm) }
	sized := func(vm *v1.VirtualMachine) {
		both(vm)
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small"}
	}
	for what, c := range map[string]struct {
		edit       func(*v1.VirtualMachine)
		phase      v1.VirtualMachineInstancePhase
		conditions []v1.VirtualMachineInstanceCondition
		rollout    v1.RolloutStrategy
		staged     string
		follows    bool
	}{
		"nothing changed": {func(*v1.VirtualMachine) {}, v1.Running, nil, v1.RolloutLiveUpdate, "", false},
		"placement": {moves, v1.Running, []v1.VirtualMachineInstanceCondition{migratable}, v1.RolloutLiveUpdate,
			"", true},
		"placement, Stage": {moves, v1.Running, []v1.VirtualMachineInstanceCondition{migratable}, v1.RolloutStage,
			"were changed; the change holds from the next start on", false},
		"placement, bridged": {moves, v1.Running, []v1.VirtualMachineInstanceCondition{bridged}, v1.RolloutLiveUpdate,
			"the guest cannot migrate: the pod's address", false},
		"placement, unknown": {moves, v1.Running, nil, v1.RolloutLiveUpdate, "not known yet", false},
		"placement, starting": {moves, v1.Scheduling, []v1.VirtualMachineInstanceCondition{migratable},
			v1.RolloutLiveUpdate, "does not run yet", false},
		"placement, ended": {moves, v1.Succeeded, []v1.VirtualMachineInstanceCondition{migratable}, v1.RolloutLiveUpdate,
			"", false},
		"another field": {grows, v1.Running, []v1.VirtualMachineInstanceCondition{migratable}, v1.RolloutLiveUpdate,
			"the template's spec was changed (hostname is new); the change holds from the next start on: virtctl restart",
			false},
		"both": {both, v1.Running, []v1.VirtualMachineInstanceCondition{migratable}, v1.RolloutLiveUpdate,
			"the template's spec was changed", true},
		"both, an instancetype": {sized, v1.Running, []v1.VirtualMachineInstanceCondition{migratable}, v1.RolloutLiveUpdate,
			"the instancetype or the preference was changed (hostname is new)", false},
	} {
		vm := machine(v1.RunStrategyAlways)
		vmi := vm.Instance(&v1.KubeVirtConfiguration{}, false)
		v1.Default(vmi)
		vmi.Status.Phase, vmi.Status.Conditions = c.phase, c.conditions
		c.edit(vm)
		config := &v1.KubeVirtConfiguration{VMRolloutStrategy: &c.rollout}
		if got := staged(vm, vmi, config); (got == "") != (c.staged == "") || !strings.Contains(got, c.staged) {
			t.Errorf("%s: staged %q, want %q", what, got, c.staged)
		}
		if got := follows(vm, vmi, c.rollout); got != c.follows {
			t.Errorf("%s: follows %v", what, got)
		}
	}
}

// placed: a running guest that can migrate follows the template's placement, and needs no restart.
func placed(s subject) {
	s.create(v1.RunStrategyAlways)
	vmi := s.vmi("")
	s.goes(vmi, v1.Running)
	until(s.t, func() error {
		vmi.Status.SetCondition(isTrueFor(v1.ConditionLiveMigratable, "Migratable"), metav1.Now())
		err := s.client.Status().Update(ctx, vmi)
		if err != nil {
			return errors.Join(err, s.client.Get(ctx, s.key(), vmi))
		}
		return nil
	})
	vm := s.is(v1.VirtualMachineStatusRunning)
	want := v1.Placement{NodeSelector: map[string]string{"rack": "2"},
		Affinity:    &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "ssd", Operator: corev1.NodeSelectorOpExists}}}}}}},
		Tolerations: []corev1.Toleration{{Key: "edge", Operator: corev1.TolerationOpExists}}}
	for _, p := range []v1.Placement{want, {NodeSelector: map[string]string{"row": "3"}}, {}} {
		s.change(vm, func() { vm.Spec.Template.Spec.Place(p) })
		until(s.t, func() error {
			if err := s.client.Get(ctx, s.key(), vmi); err != nil {
				return err
			}
			if diff := cmp.Diff(p, vmi.Spec.Placement()); diff != "" {
				return errors.New(diff)
			}
			if got := s.vm().Status; got.ObservedGeneration != vm.Generation ||
				got.Condition(v1.ConditionRestartRequired) != nil {
				return fmt.Errorf("status %+v", got)
			}
			return nil
		})
	}
	// Another field needs a restart, and the placement follows all the same.
	s.change(vm, func() {
		vm.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](7)
		vm.Spec.Template.Spec.Place(want)
	})
	s.awaitCondition(v1.ConditionRestartRequired, "TemplateChanged")
	until(s.t, func() error {
		if err := s.client.Get(ctx, s.key(), vmi); err != nil {
			return err
		}
		if diff := cmp.Diff(want, vmi.Spec.Placement()); diff != "" ||
			ptr.Deref(vmi.Spec.TerminationGracePeriodSeconds, 0) == 7 {
			return fmt.Errorf("the VMI's spec is %+v: %s", vmi.Spec, diff)
		}
		return nil
	})
	if got := s.vm().Status.ObservedGeneration; got != vm.Generation-1 {
		s.t.Errorf("observed generation %d of %d", got, vm.Generation)
	}
}

// unplaced: a guest that cannot migrate keeps its placement, and needs a restart.
func unplaced(s subject) {
	s.create(v1.RunStrategyAlways)
	vmi := s.vmi("")
	s.goes(vmi, v1.Running)
	vm := s.is(v1.VirtualMachineStatusRunning)
	s.change(vm, func() { vm.Spec.Template.Spec.NodeSelector = map[string]string{"rack": "2"} })
	c := s.awaitCondition(v1.ConditionRestartRequired, "TemplateChanged")
	if !strings.Contains(c.Message, "nodeSelector") {
		s.t.Errorf("condition %+v", c)
	}
	before := vmi.ResourceVersion
	time.Sleep(500 * time.Millisecond)
	if err := s.client.Get(ctx, s.key(), vmi); err != nil || vmi.Spec.NodeSelector != nil ||
		vmi.ResourceVersion != before {
		s.t.Errorf("the VMI was written: %v (%v)", vmi.Spec.NodeSelector, err)
	}
	s.asks(toStop(vmi.UID), toStart())
	s.stopped(vmi)
	if second := s.vmi(vmi.UID); second.Spec.NodeSelector["rack"] != "2" {
		s.t.Errorf("the second start has the placement %+v", second.Spec.NodeSelector)
	}
	s.awaitCondition(v1.ConditionRestartRequired, "")
}

// linked: a running guest follows the states of links, and needs no restart. An interface goes with the next
// start.
func linked(s subject) {
	const nics = `
  template:
    spec:
      domain:
        memory: {guest: 64Mi}
        devices:
          interfaces:
          - {name: own, masquerade: {}}
          - {name: lan, bridge: {}}
      networks:
      - {name: own, pod: {}}
      - {name: lan, multus: {networkName: lan}}
`
	if err := s.client.Create(ctx, s.object("runStrategy: Always"+nics)); err != nil {
		s.t.Fatal(err)
	}
	vmi := s.vmi("")
	s.goes(vmi, v1.Running)
	until(s.t, func() error {
		vmi.Status.Interfaces = []v1.NetworkInterfaceStatus{{Name: "own", LinkState: v1.LinkUp},
			{Name: "lan", LinkState: v1.LinkUp}}
		if err := s.client.Status().Update(ctx, vmi); err != nil {
			return errors.Join(err, s.client.Get(ctx, s.key(), vmi))
		}
		return nil
	})
	vm := s.is(v1.VirtualMachineStatusRunning)
	for _, state := range []v1.InterfaceState{v1.LinkDown, v1.LinkUp, v1.LinkDown, ""} {
		s.change(vm, func() { vm.Spec.Template.Spec.Domain.Devices.Interface("lan").State = state })
		until(s.t, func() error {
			if err := s.client.Get(ctx, s.key(), vmi); err != nil {
				return err
			}
			own, lan := vmi.Spec.Domain.Devices.Interface("own"), vmi.Spec.Domain.Devices.Interface("lan")
			got := s.vm().Status
			if own.State != "" || lan.State != state || got.ObservedGeneration != vm.Generation ||
				got.Condition(v1.ConditionRestartRequired) != nil {
				return fmt.Errorf("links %q and %q, want %q; status %+v", own.State, lan.State, state, got)
			}
			return nil
		})
	}
	s.change(vm, func() { vm.Spec.Template.Spec.Domain.Devices.Interface("lan").State = v1.LinkAbsent })
	if c := s.awaitCondition(v1.ConditionRestartRequired, "TemplateChanged"); !strings.Contains(c.Message, "interface lan is absent") {
		s.t.Errorf("condition %+v", c)
	}
	s.asks(toStop(vmi.UID), toStart())
	s.stopped(vmi)
	second := s.vmi(vmi.UID)
	if n := second.Spec.Networks; len(n) != 1 || n[0].Name != "own" || len(second.Spec.Domain.Devices.Interfaces) != 1 {
		s.t.Errorf("the second start has %+v", second.Spec)
	}
	s.awaitCondition(v1.ConditionRestartRequired, "")
}
