package vmi

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Package migration makes the target pod of a guest that moves to another node, and the virt-handlers move the guest.
// The VMI's pod is the pod where the guest is to run: first the source's, and the target's from the decision on.

// betweenDelay is the time between two looks at a guest whose pod has ended, and whose migration is not decided.
const betweenDelay = time.Second

// giveBackPatience is how long the target's virt-handler has to give a guest back that its QEMU did not let run.
const giveBackPatience = 30 * time.Second

// between reports whether the guest is in no pod for a while, so that the end of the VMI's pod is not the
// guest's. It is pure. Package migration bounds the time by its decision.
func between(w world) bool {
	m, pod := w.vmi.Migration(), w.pod
	if m == nil {
		return false
	}
	switch {
	case m.Decision == "" && w.vmi.LauncherPod() == m.SourcePod:
		// The launcher has ended after it had sent everything, because somebody deleted its pod. The target may have
		// all of the guest.
		if pod == nil {
			return w.last == nil || w.last.reason == string(control.ReasonMigrated)
		}
		last, ended := podEnd(pod)
		return ended && last.reason == string(control.ReasonMigrated)
	case m.Decision == v1.DecisionTarget && pod != nil && ended(pod) && (!m.PostCopy() || neverRan(pod)) &&
		(m.TargetState == nil || m.TargetState.DomainReadyTimestamp == nil):
		// The target's QEMU may not have let the guest run, which still is at the source then.
		source := w.companions[m.SourcePod]
		c := computeStatus(pod)
		return source != nil && !ended(source) && c != nil && c.State.Terminated != nil &&
			w.now.Sub(c.State.Terminated.FinishedAt.Time).Abs() < giveBackPatience
	}
	return false
}

// neverRan reports whether the launcher of a pod that has ended says that the guest did not run there. A guest
// that left its source by post-copy is whole there then: a launcher that has not all of its memory ends with
// another reason.
func neverRan(pod *corev1.Pod) bool {
	last, _ := podEnd(pod)
	return last.reason == string(control.ReasonStartFailed) || last.reason == string(control.ReasonNeverStarted)
}
