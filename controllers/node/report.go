package node

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// paused is the condition of a guest whose CPUs are stopped. What the launcher
// says of it is text for people, of a length that a status bears.
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

// runs is the condition Ready of a guest whose CPUs run. What its readiness probe
// says of it stays as virt-controller wrote it.
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

// maxMessage is how long a condition's message may be, in bytes.
const maxMessage = 1024

// reportSilence says in a VMI's status that its launcher or its QEMU does not
// answer, in place of the Ready that report has just set; the next report
// takes it back. It ends no VMI: absence of information is never death.
func reportSilence(object, before *v1.VirtualMachineInstance, state control.StateReport, launcherSilent bool, now metav1.Time) {
	ready := v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse}
	switch {
	case object.Status.Phase != v1.Running:
		return // its launcher's start is repeated, and says what it waits for
	case launcherSilent:
		ready.Reason = v1.ReasonLauncherNotResponding
		ready.Message = "virt-launcher does not answer virt-handler; whether the guest runs is not known"
	case state.QEMUSilent && state.State != control.StateExited:
		ready.Reason = v1.ReasonQEMUNotResponding
		ready.Message = "QEMU does not answer virt-launcher; the guest does probably not run"
	default:
		return
	}
	// From what was written before, or else the time of the transition would
	// be a new one each time.
	if old := before.Status.Condition(v1.ConditionReady); old != nil {
		if set := object.Status.Condition(v1.ConditionReady); set != nil {
			*set = *old
		}
	}
	object.Status.SetCondition(ready, now)
}

// gonePatience is how long a launcher may be off the line before its VMI's
// status says so: it dials again every two seconds, and when its VM has ended
// virt-controller soon says how.
const gonePatience = 30 * time.Second

// reportGone says in a running VMI's status that its launcher is not on the line.
func reportGone(object *v1.VirtualMachineInstance, now metav1.Time) {
	object.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1.ReasonLauncherNotResponding,
		Message: "virt-launcher is not connected to virt-handler; whether the guest runs is not known"}, now)
}

// silent says whether Ready tells of somebody who does not answer.
func silent(c *v1.VirtualMachineInstanceCondition) bool {
	return c != nil && (c.Reason == v1.ReasonQEMUNotResponding || c.Reason == v1.ReasonLauncherNotResponding)
}
