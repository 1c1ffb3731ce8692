package vmi

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// world is all that says where a VMI is in its life.
type world struct {
	vmi *v1.VirtualMachineInstance
	// pod is the launcher pod that has the VMI's guest, or nil.
	pod *corev1.Pod
	// watched means that the pod's changes bring the VMI back.
	watched bool
	// companions are the VMI's other launcher pods, by name.
	companions map[string]*corev1.Pod
	// stateGone is the name of the claim with the guest's state for which the pod waits in vain, or "".
	stateGone string
	// stranded: the pod has image volumes, and its node has none.
	stranded bool
	// last is how the VM ended in a pod that is gone, or nil if nobody saw that.
	last *end
	now  time.Time
}

// phase is where a VMI is in its life. phase.course says what is done in it.
type phase string

const (
	// removing: the VMI is deleted. Its pods go, and then the VMI.
	removing phase = "removing"
	// over: the VMI has ended. Only its labels still follow.
	over phase = "over"
	// crossing: the VMI's guest is in no pod for a while, on its way from one pod to another.
	crossing phase = "crossing"
	// unseen: the VMI's pod was just made, and the scheduler has not looked at it.
	unseen phase = "unseen"
	// replacing: no guest can start in the VMI's pod, which is made anew.
	replacing phase = "replacing"
	// following: the VMI has a pod, which its status follows.
	following phase = "following"
	// ending: the VMI's pod is gone, and the VMI ends with it.
	ending phase = "ending"
	// starting: the VMI has no pod yet.
	starting phase = "starting"
)

// decide returns the phase of a VMI. It is pure.
func decide(w world) phase {
	status := &w.vmi.Status
	switch {
	case w.vmi.DeletionTimestamp != nil:
		return removing
	case w.vmi.IsFinal():
		return over
	case between(w):
		return crossing
	case early(status, w.pod, w.now):
		return unseen
	case w.pod != nil && !launched(status) && (rejected(w.pod) || w.stateGone != "" || w.stranded):
		return replacing
	case w.pod != nil:
		return following
	case reported(status) && !wasRejected(status):
		return ending
	}
	return starting
}

// reported reports whether a VMI's status says that it has, or had, a pod.
func reported(status *v1.VirtualMachineInstanceStatus) bool {
	return status.Phase != "" && status.Phase != v1.Pending
}
