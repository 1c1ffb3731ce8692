package vm

import (
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/follow"
)

// followed: labels and annotations of the list follow the template into the running VMI. Labels and annotations
// of others stay.
func followed(s subject) {
	s.create(v1.RunStrategyAlways)
	vmi := s.vmi("")
	s.goes(vmi, v1.Running)
	vm := s.is(v1.VirtualMachineStatusRunning)
	s.change(vmi, func() {
		metav1.SetMetaDataLabel(&vmi.ObjectMeta, "example.com/mine", "kept")
		metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, "example.com/mine", "kept")
	})
	const evict = "descheduler.alpha.kubernetes.io/evict"
	has := func(labels, annotations map[string]string) {
		s.t.Helper()
		until(s.t, func() error {
			if err := s.client.Get(ctx, s.key(), vmi); err != nil {
				return err
			}
			a := maps.Clone(vmi.Annotations)
			maps.DeleteFunc(a, func(key, _ string) bool {
				return key == v1.VMGenerationAnnotation || key == v1.TemplatePartsAnnotation || key == follow.Annotation
			})
			if !maps.Equal(vmi.Labels, labels) || !maps.Equal(a, annotations) {
				return fmt.Errorf("labels %v, annotations %v, want %v and %v", vmi.Labels, a, labels, annotations)
			}
			return nil
		})
	}
	type m = map[string]string
	s.change(vm, func() {
		meta := &vm.Spec.Template.ObjectMeta
		meta.Labels = m{"kubevirt.io/vm": "vm", "example.com/tier": "1", "app": "later", "kubevirt.io/created-by": "x"}
		meta.Annotations = m{"note": "later", evict: ""}
	})
	has(m{"kubevirt.io/vm": "vm", "example.com/tier": "1", "example.com/mine": "kept"},
		m{"note": "this", "example.com/mine": "kept", evict: ""})
	if c := s.vm().Status.Condition(v1.ConditionRestartRequired); c != nil {
		s.t.Errorf("condition %+v", c)
	}
	// Nothing is written where nothing changes.
	before := vmi.ResourceVersion
	s.change(vm, func() { metav1.SetMetaDataAnnotation(&vm.ObjectMeta, "poke", "1") })
	time.Sleep(500 * time.Millisecond)
	if err := s.client.Get(ctx, s.key(), vmi); err != nil || vmi.ResourceVersion != before {
		s.t.Errorf("the VMI was written (%v)", err)
	}
	s.change(vm, func() { vm.Spec.Template.ObjectMeta.Labels = m{"example.com/tier": "no label value"} })
	s.awaitEvents("FailedUpdate")
	s.change(vm, func() { vm.Spec.Template.ObjectMeta.Labels, vm.Spec.Template.ObjectMeta.Annotations = nil, nil })
	has(m{"kubevirt.io/vm": "vm", "example.com/mine": "kept"}, m{"note": "this", "example.com/mine": "kept"})
	if list, ok := vmi.Annotations[follow.Annotation]; ok {
		s.t.Errorf("the VMI follows %q", list)
	}

	// A VMI that has the keys from its start is not written again.
	s.change(vm, func() { vm.Spec.Template.ObjectMeta.Labels = m{"example.com/tier": "2"} })
	has(m{"kubevirt.io/vm": "vm", "example.com/mine": "kept", "example.com/tier": "2"},
		m{"note": "this", "example.com/mine": "kept"})
	s.goes(vmi, v1.Failed)
	s.stopped(vmi)
	vmi = s.vmi(vmi.UID)
	has(m{"example.com/tier": "2"}, m{})
	first := vmi.ResourceVersion
	time.Sleep(500 * time.Millisecond)
	if err := s.client.Get(ctx, s.key(), vmi); err != nil || vmi.ResourceVersion != first ||
		vmi.Annotations[follow.Annotation] != "label:example.com/tier" {
		s.t.Errorf("a new VMI was written, or has no note: %v (%v)", vmi.Annotations, err)
	}
}
