package node

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// reportCredentials writes into a running VMI's status whether the guest's users have what the Secrets hold. The
// message of a failure is partly the guest's own text: it is made printable, and as short as a status allows. The
// condition has no reason, as in KubeVirt.
func reportCredentials(object *v1.VirtualMachineInstance, said *control.CredentialsReport, now metav1.Time) {
	if said == nil || object.Status.Phase != v1.Running || len(handover.AgentCredentials(object)) == 0 {
		return
	}
	c := v1.VirtualMachineInstanceCondition{Type: v1.ConditionAccessCredentialsSynchronized, Status: metav1.ConditionTrue}
	if !said.Synchronized {
		c.Status, c.Message = metav1.ConditionFalse, control.Printable(said.Message, maxMessage)
	}
	object.Status.SetCondition(c, now)
}

// announceCredentials makes KubeVirt's events of a change of the condition
// AccessCredentialsSynchronized. It makes none of an agent that is not there yet: each guest has to boot first.
func (r *Reconciler) announceCredentials(before, after *v1.VirtualMachineInstance) {
	was := cmp.Or(before.Status.Condition(v1.ConditionAccessCredentialsSynchronized),
		&v1.VirtualMachineInstanceCondition{})
	switch is := after.Status.Condition(v1.ConditionAccessCredentialsSynchronized); {
	case is == nil || is.Status == was.Status && is.Message == was.Message:
	case was.Status == "" && is.Message == control.AgentOffline:
	case is.Status == metav1.ConditionTrue:
		r.Events.Eventf(after, nil, corev1.EventTypeNormal, "AccessCredentialsSyncSuccess", "Synchronize",
			"Access credentials sync successful.")
	default:
		r.Events.Eventf(after, nil, corev1.EventTypeWarning, "AccessCredentialsSyncFailed", "Synchronize",
			"Access credentials sync failed: %s", is.Message)
	}
}
