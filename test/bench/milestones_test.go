package main

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestMilestonesAreSeenOnce: each step of each object, when it is first seen.
func TestMilestonesAreSeenOnce(t *testing.T) {
	pod := func(uid, node string, conditions ...corev1.PodConditionType) client.Object {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		p.UID = types.UID(uid)
		for _, c := range conditions {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue})
		}
		return p
	}
	vmi := func(phase v1.VirtualMachineInstancePhase) client.Object {
		vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: phase}}
		vmi.UID = "vmi"
		return vmi
	}
	m := &milestones{seen: map[milestone]bool{}, begin: time.Now()}
	for _, object := range []client.Object{vmi(v1.Pending), pod("a", ""), pod("a", "node"), pod("b", "node"),
		pod("a", "node", corev1.ContainersReady), vmi(v1.Running), vmi(v1.Running),
		pod("a", "node", corev1.ContainersReady, corev1.PodReady)} {
		m.see(watch.Event{Type: watch.Modified, Object: object}, true)
	}
	m.see(watch.Event{Type: watch.Deleted, Object: pod("c", "node")}, true)
	for name, tt := range map[string]struct {
		step []float64
		want int
	}{
		"accepted": {m.accepted, 1}, "running": {m.running, 1}, "pods": {m.pods, 2}, "scheduled": {m.scheduled, 2},
		"containers": {m.containersReady, 1}, "ready": {m.ready, 1},
	} {
		if len(tt.step) != tt.want {
			t.Errorf("%s: seen %d times, want %d", name, len(tt.step), tt.want)
		}
	}
	if m.pod.UID != "a" || m.accepted[0] > m.running[0] || m.running[0] > m.ready[0] {
		t.Errorf("the steps are out of order: %+v", m)
	}
	err := caught(func() { m.see(watch.Event{Type: watch.Modified, Object: vmi(v1.Failed)}, true) })
	if err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a VMI that has ended is waited for: %v", err)
	}
}
