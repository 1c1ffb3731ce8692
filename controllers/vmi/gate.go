package vmi

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// unpausedGate is the condition without which a launcher pod is not Ready, so that
// Services send nothing to a guest that is paused.
const unpausedGate corev1.PodConditionType = "kubevirt.io/virtual-machine-unpaused"

// hasGate reports whether a pod has the gate.
func hasGate(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.ReadinessGates,
		func(g corev1.PodReadinessGate) bool { return g.ConditionType == unpausedGate })
}

// unpaused returns the new value of the gate's condition, or nil if nothing is to be written. The first write
// is due when the guest runs, or is paused from the start. KubeVirt writes earlier: there a guest that has not
// been started counts as not paused, and Services send to it.
func unpaused(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, now metav1.Time) *corev1.PodCondition {
	if !hasGate(pod) || vmi.Status.Phase != v1.Running || pod.DeletionTimestamp != nil {
		return nil
	}
	c := corev1.PodCondition{Type: unpausedGate, Status: corev1.ConditionTrue, Reason: v1.ReasonNotPaused,
		Message: "the virtual machine is not paused", LastProbeTime: now, LastTransitionTime: now}
	if p := vmi.Status.Condition(v1.ConditionPaused); p != nil && p.Status == metav1.ConditionTrue {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, v1.ReasonPaused, "the virtual machine is paused"
	}
	for _, old := range pod.Status.Conditions {
		if old.Type == c.Type && old.Status == c.Status {
			return nil
		}
	}
	return &c
}

// gateAfter is how long after virt-handler's report that a guest runs its gate opens. The
// guest boots meanwhile, and serves nothing yet. Where many guests start at once, an earlier
// write would take CPU time from guests that are not yet reported as running.
const gateAfter = 2 * time.Second

// booting returns how long a guest's gate still stays closed. It returns 0 if the guest has
// run for long enough, or if the clock of the node, which wrote the time of the start, is
// ahead.
func booting(vmi *v1.VirtualMachineInstance, now time.Time) time.Duration {
	for _, t := range vmi.Status.PhaseTransitionTimestamps {
		if age := now.Sub(t.PhaseTransitionTimestamp.Time); t.Phase == v1.Running && age >= 0 {
			return max(gateAfter-age, 0)
		}
	}
	return 0
}

// openGate writes the gate's condition, or returns how long to wait until then. The patch names only this
// condition. A strategic merge patch merges conditions by type, and the other conditions are the kubelet's.
func (r *Reconciler) openGate(ctx context.Context, t *turn) (time.Duration, error) {
	vmi, pod := t.vmi, t.pod
	if pod == nil {
		return 0, nil
	}
	c := unpaused(vmi, pod, r.now())
	if c == nil {
		return 0, nil
	}
	if wait := booting(vmi, r.Clock.Now()); wait > 0 {
		return wait, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"conditions": []corev1.PodCondition{*c}},
	})
	if err == nil {
		err = r.Client.Status().Patch(ctx, pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch))
	}
	if err != nil {
		return 0, fmt.Errorf("write condition %s of pod %s: %w", unpausedGate, pod.Name, err)
	}
	return 0, nil
}

// observeReadiness brings Ready up to date with the readiness probe of a running guest. virt-handler wrote any
// other reason of Ready, which stays.
func observeReadiness(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, now metav1.Time) {
	ready := vmi.Status.Condition(v1.ConditionReady)
	if vmi.Spec.ReadinessProbe == nil || vmi.Status.Phase != v1.Running || ready == nil ||
		ready.Reason != v1.ReasonGuestReady && ready.Reason != v1.ReasonContainersNotReady {
		return
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.ContainersReady && c.Status == corev1.ConditionTrue {
			setReady(&vmi.Status, metav1.ConditionTrue, v1.ReasonGuestReady, v1.MessageGuestReady, now)
			return
		}
	}
	setReady(&vmi.Status, metav1.ConditionFalse, v1.ReasonContainersNotReady, v1.MessageContainersNotReady, now)
}
