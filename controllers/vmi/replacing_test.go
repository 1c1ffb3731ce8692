package vmi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestReconcileRejectedPodIsReplaced(t *testing.T) {
	// That the pod was made is not in the status where its write failed.
	for _, phase := range []v1.VirtualMachineInstancePhase{"", v1.Pending, v1.Scheduling} {
		pod := Pod(load(t, "testdata/minimal"), testConfig)
		pod.UID, pod.CreationTimestamp = "rejected", metav1.Unix(900, 0)
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: v1.ReasonRejected, Message: "no devices"}
		c := newCluster(t, phase, interceptor.Funcs{}, pod)
		if err := c.reconcile(); err != nil || c.pods() != 1 || !strings.Contains(c.status(), v1.ReasonRejected) {
			t.Fatalf("%q: error %v, %d pods, status %s, want it noted first", phase, err, c.pods(), c.status())
		}
		if err := c.reconcile(); err != nil || c.pods() != 0 {
			t.Fatalf("%q: error %v, %d pods, want it deleted", phase, err, c.pods())
		}
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		if got := c.status(); c.pods() != 1 || !strings.HasPrefix(got, "Scheduling") {
			t.Errorf("%q: status %s, %d pods, want another", phase, got, c.pods())
		}
	}
}

// TestReconcileReplacementRefused: a pod that is to take a rejected one's place may
// be refused for a while, by a quota say, and is made when it is not any more.
func TestReconcileReplacementRefused(t *testing.T) {
	pod := Pod(load(t, "testdata/minimal"), testConfig)
	pod.UID, pod.CreationTimestamp = "rejected", metav1.Unix(900, 0)
	pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: v1.ReasonRejected, Message: "no devices"}
	refuse := true
	c := newCluster(t, v1.Scheduling, interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if refuse {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, o.GetName(), errors.New("quota"))
			}
			return w.Create(ctx, o, opts...)
		},
	}, pod)
	for range 5 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.status(); !strings.HasPrefix(got, "Scheduling") ||
		!strings.Contains(got, "Synchronized=False/FailedCreate") || c.pods() != 0 {
		t.Fatalf("while it is refused: status %s, %d pods", got, c.pods())
	}
	refuse = false
	if err := c.reconcile(); err != nil {
		t.Fatal(err)
	}
	if got := c.status(); !strings.HasPrefix(got, "Scheduling") || strings.Contains(got, "Synchronized") || c.pods() != 1 {
		t.Errorf("status %s, %d pods", got, c.pods())
	}
}

// TestReconcilePodRejectedAfterItRan: a pod that the kubelet turns away after its guest ran, as it does after a
// power cut, ends the VMI, whatever the kubelet has forgotten.
func TestReconcilePodRejectedAfterItRan(t *testing.T) {
	for _, phase := range []v1.VirtualMachineInstancePhase{v1.Scheduled, v1.Running} {
		pod := Pod(load(t, "testdata/minimal"), testConfig)
		pod.UID, pod.CreationTimestamp = "rejected", metav1.Unix(900, 0)
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: v1.ReasonRejected, Message: "no devices"}
		c := newCluster(t, phase, interceptor.Funcs{}, pod)
		for range 3 {
			if err := c.reconcile(); err != nil {
				t.Fatal(err)
			}
		}
		if got := c.status(); got != "Failed  UnexpectedAdmissionError; LiveMigratable=True/Migratable Ready=False/UnexpectedAdmissionError" || c.pods() != 1 {
			t.Errorf("%s: status %s, %d pods", phase, got, c.pods())
		}
	}
}

// TestReconcileRejectedPodWaits: the longer a node turns every pod away, the less often it is asked.
func TestReconcileRejectedPodWaits(t *testing.T) {
	for _, tt := range []struct{ age, podAge, want time.Duration }{
		{4 * time.Second, time.Second, 2 * time.Second},
		{4 * time.Second, 3 * time.Second, 0},
		{time.Minute, 4 * time.Second, 11 * time.Second},
		{time.Hour, 4 * time.Second, 5*time.Minute - 4*time.Second},
		{time.Hour, 5 * time.Minute, 0},
		{-24 * time.Hour, -24 * time.Hour, 0},                    // the clock was set back
		{-time.Minute, -time.Minute, replaceAfter + time.Minute}, // it is behind the API server's
		{time.Hour, -time.Minute, longestDelay},
	} {
		pod := Pod(load(t, "testdata/minimal"), testConfig)
		pod.UID, pod.CreationTimestamp = "rejected", metav1.NewTime(time.Unix(1000, 0).Add(-tt.podAge))
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: v1.ReasonRejected, Message: "no devices"}
		c := newCluster(t, v1.Scheduling, interceptor.Funcs{}, pod)
		vmi := c.get()
		vmi.CreationTimestamp = metav1.NewTime(time.Unix(1000, 0).Add(-tt.age))
		if err := c.client.Update(context.Background(), vmi); err != nil {
			t.Fatal(err)
		}
		c.later() // it is noted
		if after := c.later(); after != tt.want || (c.pods() == 0) != (tt.want == 0) {
			t.Errorf("VMI of %s, pod of %s: again after %s, %d pods; want %s", tt.age, tt.podAge, after, c.pods(), tt.want)
		}
	}
}
