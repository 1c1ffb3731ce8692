package node

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// paused is the condition of a guest whose CPUs are stopped. Texts of the launcher are made
// printable, and as short as a status allows.
func paused(pause *control.Pause) v1.VirtualMachineInstanceCondition {
	c := v1.VirtualMachineInstanceCondition{Type: v1.ConditionPaused, Status: metav1.ConditionTrue,
		Reason: v1.ReasonPaused, Message: "the guest's CPUs are stopped"}
	switch {
	case pause == nil:
	case pause.Status == control.PausedByUser:
		c.Reason, c.Message = v1.ReasonPausedByUser, "VMI was paused by user"
	case pause.Status == control.PausedIOError:
		c.Reason, c.Message = v1.ReasonPausedIOError, ioErrorMessage(pause)
	default:
		c.Message = fmt.Sprintf("the guest's CPUs are stopped; QEMU's run state is %q", control.Short(pause.Status))
	}
	return c
}

// runs is the condition Ready of a guest whose CPUs run. For a VMI with a readiness probe it
// keeps the result that virt-controller wrote.
func runs(object *v1.VirtualMachineInstance) v1.VirtualMachineInstanceCondition {
	c := v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionTrue,
		Reason: v1.ReasonGuestRunning, Message: v1.MessageGuestRunning}
	if object.Spec.ReadinessProbe == nil {
		return c
	}
	if old := object.Status.Condition(v1.ConditionReady); old != nil && (old.Reason == v1.ReasonGuestReady || old.Reason == v1.ReasonContainersNotReady) {
		return *old
	}
	c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1.ReasonContainersNotReady, v1.MessageContainersNotReady
	return c
}

func ioErrorMessage(pause *control.Pause) string {
	operation := "use"
	if pause.Operation == "read" || pause.Operation == "write" {
		operation = pause.Operation
	}
	text := control.Short(pause.Error)
	if pause.NoSpace {
		text += " (nospace)"
	}
	return fmt.Sprintf("VMI was paused, low-level IO error detected: %s disk %q: %s", operation, control.Short(pause.Disk), text)
}

// announcePause makes events of the guest's pauses and their ends. A guest that is paused from
// its start on makes none: its VMI's event Started is enough.
func (r *Reconciler) announcePause(before, object *v1.VirtualMachineInstance) {
	now, then := object.Status.Condition(v1.ConditionPaused), before.Status.Condition(v1.ConditionPaused)
	ran := before.Status.Phase == v1.Running && object.Status.Phase == v1.Running
	switch {
	case now != nil && (then == nil || then.Reason != now.Reason):
		switch {
		case now.Reason == v1.ReasonPausedIOError:
			r.Events.Eventf(object, nil, corev1.EventTypeWarning, "IOerror", "Pause", "%s", now.Message)
		case ran && now.Reason == v1.ReasonPausedByUser:
			r.Events.Eventf(object, nil, corev1.EventTypeNormal, "Paused", "Pause", "VirtualMachineInstance paused")
		case ran:
			r.Events.Eventf(object, nil, corev1.EventTypeWarning, "Paused", "Pause", "%s", now.Message)
		}
	case now == nil && then != nil && ran && !failed(object):
		r.Events.Eventf(object, nil, corev1.EventTypeNormal, "Unpaused", "Unpause", "VirtualMachineInstance unpaused")
	}
}

// failed says whether the guest has failed and its launcher is kept.
func failed(object *v1.VirtualMachineInstance) bool {
	ready := object.Status.Condition(v1.ConditionReady)
	return ready != nil && ready.Reason == v1.ReasonGuestFailed
}

// maxMessage is how long a condition's message may be, in bytes.
const maxMessage = 1024

// reportSilence says in a VMI's status that its launcher or its QEMU does not answer. This
// replaces the Ready that report has just set, and the next report takes it back. It ends no
// VMI: absence of information is never death.
func reportSilence(object, before *v1.VirtualMachineInstance, state control.StateReport, launcherSilent bool, now metav1.Time) {
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

// notConnected is why nobody knows of a guest whose launcher has not come back.
const notConnected = "virt-launcher is not connected to virt-handler"

// reportGone says in a running VMI's status why its launcher cannot be asked.
func reportGone(object *v1.VirtualMachineInstance, why string, now metav1.Time) {
	object.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1.ReasonLauncherNotResponding,
		Message: why + "; whether the guest runs is not known"}, now)
}

// silent says whether the condition Ready has a reason that the launcher or QEMU does not
// answer.
func silent(c *v1.VirtualMachineInstanceCondition) bool {
	return c != nil && (c.Reason == v1.ReasonQEMUNotResponding || c.Reason == v1.ReasonLauncherNotResponding)
}
