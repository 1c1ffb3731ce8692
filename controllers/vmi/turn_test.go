package vmi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestStepsEndWithTheOneThatFails: a list of steps ends with the step that fails, or that has the rest skipped. The
// shortest wait counts.
func TestStepsEndWithTheOneThatFails(t *testing.T) {
	type answer struct {
		wait time.Duration
		err  error
	}
	down := errors.New("down")
	for name, c := range map[string]struct {
		answers []answer
		taken   int
		wait    time.Duration
		err     error
	}{
		"none":               {nil, 0, 0, nil},
		"all":                {[]answer{{}, {2, nil}, {}, {1, nil}, {3, nil}}, 5, 1, nil},
		"one fails":          {[]answer{{2, nil}, {3, down}, {1, nil}}, 2, 2, down},
		"the rest waits":     {[]answer{{3, nil}, {2, errSkipRest}, {1, nil}}, 2, 2, nil},
		"nothing is written": {[]answer{{0, nil}, {2, errSkipAll}, {1, nil}}, 2, 2, errSkipAll},
	} {
		taken := 0
		var steps []step
		for _, a := range c.answers {
			steps = append(steps, func(*Reconciler, context.Context, *turn) (time.Duration, error) {
				taken++
				return a.wait, a.err
			})
		}
		r := &Reconciler{}
		if wait, err := r.take(t.Context(), &turn{}, steps); wait != c.wait || !errors.Is(err, c.err) || taken != c.taken {
			t.Errorf("%s: %d steps, %d, %v", name, taken, wait, err)
		}
	}
}

// TestStatusIsWrittenThoughAStepFails: what is known of the pod is in the status, though the nodes cannot be listed, by
// which the scheduler's complaint is explained. What follows the write waits until they can.
func TestStatusIsWrittenThoughAStepFails(t *testing.T) {
	pod := Pod(load(t, "testdata/minimal"), testConfig)
	pod.UID, pod.CreationTimestamp = "pod-uid", metav1.Unix(900, 0)
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: v1.ReasonUnschedulable, Message: "0/1 nodes"}}
	down := errors.New("down")
	fails := true
	c := newCluster(t, "", interceptor.Funcs{
		List: func(ctx context.Context, w client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if _, nodes := l.(*metav1.PartialObjectMetadataList); nodes && fails {
				return down
			}
			return w.List(ctx, l, opts...)
		},
	}, pod)
	if err := c.reconcile(); !errors.Is(err, down) {
		t.Errorf("error %v", err)
	}
	said := func() string { return c.get().Status.Condition(v1.ConditionPodScheduled).Message }
	if got := c.status(); !strings.HasPrefix(got, "Scheduling") || said() != "0/1 nodes" {
		t.Errorf("status %s: %s", got, said())
	}
	fails = false
	if err := c.reconcile(); err != nil || said() != "0/1 nodes; there is no other node" {
		t.Errorf("error %v, %s", err, said())
	}
}
