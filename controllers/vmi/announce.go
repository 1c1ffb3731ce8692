package vmi

import (
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// announce makes events of what is new in the status.
func (r *Reconciler) announce(before, vmi *v1.VirtualMachineInstance) {
	if s, old := vmi.Status.Condition(v1.ConditionSynchronized),
		before.Status.Condition(v1.ConditionSynchronized); s != nil && (old == nil || old.Reason != s.Reason) {
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, s.Reason, "Synchronize", "%s", s.Message)
	}
	if c := vmi.Status.Condition(v1.ConditionEvictionRequested); c != nil &&
		before.Status.Condition(v1.ConditionEvictionRequested) == nil {
		r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, c.Reason, "Evict", "%s", c.Message)
	}
	for _, failure := range []v1.ConditionType{v1.ConditionFilesystemFailed, v1.ConditionNetworkFailed} {
		if c := vmi.Status.Condition(failure); c != nil && before.Status.Condition(failure) == nil {
			r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, string(c.Type), "Watch", "%s", c.Message)
		}
	}
	if before.IsFinal() || !vmi.IsFinal() {
		return
	}
	ready := vmi.Status.Condition(v1.ConditionReady)
	if ready.Reason == string(control.ReasonGuestPanic) {
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, ready.Reason, "Watch", "%s", ready.Message)
	}
	switch {
	case vmi.Status.Reason == v1.ReasonInvalidSpec, vmi.Status.Reason == v1.ReasonPresetFailed: // announced above
	case vmi.Status.Phase == v1.Succeeded:
		r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "Stopped", "Stop", "The VirtualMachineInstance was shut down: %s",
			ready.Message)
	default:
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "Stopped", "Stop", "The VirtualMachineInstance failed (%s): %s",
			ready.Reason, ready.Message)
	}
}
