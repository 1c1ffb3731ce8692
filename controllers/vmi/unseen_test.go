package vmi

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestReconcileReportsOnce: a pod that the scheduler has not looked at yet is reported with what the scheduler
// says of it, in one write. Without a word of the scheduler's it is reported soon.
func TestReconcileReportsOnce(t *testing.T) {
	for name, c := range map[string]struct {
		change func(pod *corev1.Pod)
		age    time.Duration
		wait   bool
		want   string
	}{
		"new":                             {func(*corev1.Pod) {}, 0, true, "  ;"},
		"by a late clock":                 {func(*corev1.Pod) {}, -time.Second, true, "  ;"},
		"waits":                           {func(*corev1.Pod) {}, 3 * time.Second, false, created},
		"by a clock that is an hour late": {func(*corev1.Pod) {}, -time.Hour, false, created},
		"bound": {func(pod *corev1.Pod) { pod.Spec.NodeName = "node1" }, 0, false,
			"Scheduling node1 ; LiveMigratable=True/Migratable Ready=False/GuestNotRunning"},
		"no node": {func(pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable"}}
		}, 0, false,
			"Scheduling  ; LiveMigratable=True/Migratable PodScheduled=False/Unschedulable Ready=False/GuestNotRunning"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := Pod(load(t, "testdata/minimal"), testConfig)
			pod.UID, pod.CreationTimestamp = "pod-uid", metav1.NewTime(time.Unix(1000, 0).Add(-c.age))
			c.change(pod)
			cl := newCluster(t, "", interceptor.Funcs{}, pod)
			if wait := cl.later(); (wait > 0) != c.wait {
				t.Errorf("comes back after %v", wait)
			}
			if got := cl.status(); got != c.want {
				t.Errorf("status %q, want %q", got, c.want)
			}
		})
	}
}
