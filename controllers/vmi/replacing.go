package vmi

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// replaceAfter is the least age at which a rejected pod is replaced. A node may reject every
// pod: the wait keeps the attempts apart, and grows with the VMI's age (retryAfter).
const replaceAfter = 3 * time.Second

// replace deletes a pod in which no guest can start. Once the pod is gone, createPod makes another. replace
// returns how long to wait if it is too early to delete the pod.
func (r *Reconciler) replace(ctx context.Context, t *turn) (time.Duration, error) {
	vmi, pod := t.vmi, t.pod
	noted := wasRejected(&vmi.Status)
	r.noteReplaced(&t.world)
	if pod.DeletionTimestamp != nil || !noted {
		// The status must say first that the pod is replaced: without that, a pod that is
		// gone would end the VMI. The event of the status write brings us back.
		return 0, nil
	}
	waited := r.Clock.Since(pod.CreationTimestamp.Time)
	// This clock may be minutes behind the API server's. A pod from further in the future was
	// made before this clock was set back, and need not wait.
	if wait := r.retryAfter(vmi, replaceAfter) - waited; wait > 0 && waited > -longestDelay {
		return min(wait, longestDelay), nil
	}
	return 0, r.deletePod(ctx, pod)
}

// rejected reports whether the kubelet rejected the pod, as it does while the slots' device plugin or the node
// restarts. Such a pod may be replaced if no container of it has run: then nothing starts twice.
func rejected(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == v1.ReasonRejected && computeStatus(pod) == nil
}

// launched reports whether the VMI's launcher has run. After a power cut the kubelet rejects such pods, too,
// and forgets their containers. The pod then looks as if it had never run, but its guest has run, and has
// ended.
func launched(status *v1.VirtualMachineInstanceStatus) bool {
	return status.Phase == v1.Scheduled || status.Phase == v1.Running
}

// noteReplaced writes into the status why the pod, in which no guest can start, is being replaced: wasRejected knows
// the reasons. The VMI becomes Scheduling, because the kubelet may reject a pod before the status reports the pod.
func (r *Reconciler) noteReplaced(w *world) {
	status, now := &w.vmi.Status, r.now()
	status.SetPhase(v1.Scheduling, now)
	switch {
	case w.stateGone != "":
		status.Complain(v1.ReasonPvcNotFound, fmt.Sprintf("PVC %s/%s, which had the guest's state, is gone; "+
			"it is made anew and empty, and the launcher pod too", w.vmi.Namespace, w.stateGone), now)
	case w.stranded:
		status.Complain(v1.ReasonNoImageVolumes, fmt.Sprintf("the launcher pod has image volumes, and its node %s has none; "+
			"the pod is made anew, with containers that hand out the images", w.pod.Spec.NodeName), now)
	default:
		status.Complain(v1.ReasonRejected,
			"the node turned the launcher pod away, and it is made anew: "+w.pod.Status.Message, now)
	}
	setReady(status, metav1.ConditionFalse, v1.ReasonPodNotExists, "the launcher pod is being made anew", now)
	endEviction(status)
}

// wasRejected reports whether the VMI is to get another pod. A VMI that is Scheduling has a condition about a
// missing or unfilled claim, or a pod or a claim that could not be created, only after a rejection, or the loss
// of the claim with its state: before its first pod it is Pending.
func wasRejected(status *v1.VirtualMachineInstanceStatus) bool {
	if status.Phase != v1.Scheduling {
		return false
	}
	return status.Condition(v1.ConditionProvisioning) != nil ||
		status.ComplaintOf(v1.OwnerReplacement, v1.OwnerPod, v1.OwnerDisks, v1.OwnerState)
}
