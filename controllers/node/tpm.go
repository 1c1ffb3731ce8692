package node

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// reportTPM writes into a VMI's status that the guest's TPM has failed. A TPM that has failed never works again.
func reportTPM(object *v1.VirtualMachineInstance, state control.StateReport, now metav1.Time) {
	if object.Spec.Domain.TPM() == nil || state.TPMLost == "" || object.IsFinal() {
		return
	}
	object.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionTPMFailed,
		Status: metav1.ConditionTrue, Reason: v1.ReasonTPMEmulatorEnded,
		Message: "the guest's TPM has failed, and works again when the VM is stopped and started: " +
			control.Printable(state.TPMLost, maxMessage)}, now)
}

// announceTPM makes an event of it.
func (r *Reconciler) announceTPM(before, object *v1.VirtualMachineInstance) {
	if c := object.Status.Condition(v1.ConditionTPMFailed); c != nil &&
		before.Status.Condition(v1.ConditionTPMFailed) == nil {
		r.Events.Eventf(object, nil, corev1.EventTypeWarning, string(c.Type), "Watch", "%s", c.Message)
	}
}
