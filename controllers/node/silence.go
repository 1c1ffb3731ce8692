package node

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// reportSilence writes into a VMI's status that its launcher or its QEMU does not answer. This replaces the Ready
// that report has just set, and the next report takes it back. It never ends the VMI: no answer does not mean that
// the guest has ended.
func reportSilence(object, before *v1.VirtualMachineInstance, state control.StateReport, launcherSilent bool,
	now metav1.Time) {
	ready := v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse}
	switch {
	case object.Status.Phase != v1.Running:
		return // the start is repeated, and its error says what is missing
	case launcherSilent:
		ready.Reason = v1.ReasonLauncherNotResponding
		ready.Message = "virt-launcher does not answer virt-handler; whether the guest runs is not known"
	case state.QEMUSilent && state.State != control.StateExited:
		ready.Reason = v1.ReasonQEMUNotResponding
		ready.Message = "QEMU does not answer virt-launcher; the guest does probably not run"
	default:
		return
	}
	// Begin with the condition that was written before: the one that report has just set would
	// make each report a new transition, with a new time.
	if old := before.Status.Condition(v1.ConditionReady); old != nil {
		if set := object.Status.Condition(v1.ConditionReady); set != nil {
			*set = *old
		}
	}
	object.Status.SetCondition(ready, now)
}

// gonePatience is how long a launcher may be disconnected before its VMI's status says so. A
// launcher dials again every two seconds, and when its VM has ended, virt-controller soon says
// how.
const gonePatience = 30 * time.Second

// notConnected is the reason reported for a guest whose launcher has not connected again.
const notConnected = "virt-launcher is not connected to virt-handler"

// reportGone writes into a running VMI's status why its launcher cannot be asked.
func reportGone(object *v1.VirtualMachineInstance, why string, now metav1.Time) {
	object.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse,
		Reason: v1.ReasonLauncherNotResponding, Message: why + "; whether the guest runs is not known"}, now)
}

// reportForeign writes into a VMI's status why virt-handler does not serve its launcher. A running guest goes on.
func reportForeign(object *v1.VirtualMachineInstance, why error, now metav1.Time) {
	if object.Status.Phase == v1.Running {
		reportGone(object, "virt-handler does not serve virt-launcher: "+control.Printable(why.Error(), maxMessage), now)
	} else {
		startFailed(object, why, now)
	}
}

// silent reports whether the condition Ready has a reason that the launcher or QEMU does not answer.
func silent(c *v1.VirtualMachineInstanceCondition) bool {
	return c != nil && (c.Reason == v1.ReasonQEMUNotResponding || c.Reason == v1.ReasonLauncherNotResponding)
}
