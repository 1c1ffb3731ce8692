package vmi

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// earlyDelay is how long the scheduler has for a new pod before the VMI's status reports the
// pod. So one write reports the pod and its node, instead of two writes. A bound pod is
// reported at once.
const earlyDelay = time.Second

// early reports whether a pod was just made, the scheduler has not looked at it yet, and the VMI's status does
// not report it.
func early(status *v1.VirtualMachineInstanceStatus, pod *corev1.Pod, now time.Time) bool {
	if pod == nil || reported(status) {
		return false
	}
	age := now.Sub(pod.CreationTimestamp.Time) // in whole seconds, by the API server's clock
	return pod.Spec.NodeName == "" && len(pod.Status.Conditions) == 0 && age.Abs() < 2*earlyDelay
}

// waitForScheduler ends the turn of a VMI whose pod the scheduler has not looked at.
func (r *Reconciler) waitForScheduler(context.Context, *turn) (time.Duration, error) {
	return earlyDelay, errSkipAll
}

// waitIfUnseen ends the turn of a VMI whose pod createPod has just made.
func (r *Reconciler) waitIfUnseen(ctx context.Context, t *turn) (time.Duration, error) {
	if early(&t.before.Status, t.pod, r.Clock.Now()) {
		return r.waitForScheduler(ctx, t)
	}
	return 0, nil
}
