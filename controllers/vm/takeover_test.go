package vm

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

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
	c := s.awaitCondition(v1.ConditionRestartRequired, "TemplateChanged")
	if !strings.Contains(c.Message, "interfaces[lan].state (the next start leaves the interface out)") {
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
