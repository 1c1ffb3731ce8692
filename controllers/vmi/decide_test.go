package vmi

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// usual returns the world of a VMI whose guest runs on node1.
func usual(t *testing.T) world {
	t.Helper()
	vmi := load(t, "testdata/minimal")
	vmi.Status.Phase, vmi.Status.NodeName = v1.Running, "node1"
	pod := gated(t)
	pod.CreationTimestamp = metav1.Unix(900, 0)
	return world{vmi: vmi, pod: pod, watched: true, now: time.Unix(1000, 0)}
}

// saying returns the state of a launcher's container that ended a second ago with a reason.
func saying(reason control.Reason) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Unix(999, 0),
		Message: `{"reason":"` + string(reason) + `"}`}}
}

// TestDecide: in which phase a VMI is, by what is there.
func TestDecide(t *testing.T) {
	is := func(p v1.VirtualMachineInstancePhase) func(*world) { return func(w *world) { w.vmi.Status.Phase = p } }
	none := func(w *world) { w.pod = nil }
	deleted := func(w *world) { w.vmi.DeletionTimestamp = &metav1.Time{Time: w.now} }
	fresh := func(w *world) {
		w.vmi.Status.Phase, w.pod.Status = "", corev1.PodStatus{}
		w.pod.Spec.NodeName, w.pod.CreationTimestamp = "", metav1.NewTime(w.now)
	}
	turnedAway := func(w *world) {
		w.pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: v1.ReasonRejected}
	}
	podEnds := func(reason control.Reason) func(*world) {
		return func(w *world) { w.pod.Status = podIn(corev1.PodSucceeded, saying(reason)).Status }
	}
	saw := func(reason control.Reason) func(*world) {
		return func(w *world) { w.last = &end{phase: v1.Failed, reason: string(reason)} }
	}
	moves := func(d v1.MigrationDecision) func(*world) {
		return func(w *world) {
			source := w.vmi.LauncherPod()
			w.vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m",
				SourceNode: "node0", SourcePod: source, TargetNode: "node1", TargetPod: "target", Decision: d}
			w.vmi.Status.Settle()
			w.companions = map[string]*corev1.Pod{source: gated(t)}
		}
	}
	podDeleted := func(w *world) { w.pod.DeletionTimestamp = &metav1.Time{Time: w.now} }
	bound := func(w *world) { w.pod.Spec.NodeName = "node1" }
	noNode := func(w *world) {
		w.pod.Status.Conditions = []corev1.PodCondition{podCondition(corev1.PodScheduled, corev1.ConditionFalse)}
	}
	evicted := func(w *world) { w.pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"} }
	alone := func(w *world) { w.companions = nil }
	arrives, refuses, sent := moves(v1.DecisionTarget), podEnds(control.ReasonStartFailed), podEnds(control.ReasonMigrated)
	noState := func(w *world) {
		w.stateGone, w.pod.Spec.NodeName, w.pod.Status = "state", "", corev1.PodStatus{Phase: corev1.PodPending}
	}
	later := func(d time.Duration) func(*world) { return func(w *world) { w.now = w.now.Add(d) } }
	anew := func(reason string) func(*world) {
		return func(w *world) {
			w.pod, w.vmi.Status.Phase = nil, v1.Scheduling
			w.vmi.Status.Complain(reason, "", metav1.NewTime(w.now))
		}
	}
	type changes []func(*world)
	for name, c := range map[string]struct {
		want    phase
		changes changes
	}{
		"the guest runs":                             {following, nil},
		"the pod is gone while Running":              {ending, changes{none}},
		"the pod is gone while Scheduled":            {ending, changes{none, is(v1.Scheduled)}},
		"the pod is gone while Scheduling":           {ending, changes{none, is(v1.Scheduling)}},
		"the VMI is new":                             {starting, changes{none, is("")}},
		"the VMI waits for a claim":                  {starting, changes{none, is(v1.Pending)}},
		"the VMI has failed":                         {over, changes{is(v1.Failed)}},
		"the VMI has ended, and its pod is gone":     {over, changes{none, is(v1.Succeeded)}},
		"the pod has ended":                          {following, changes{podEnds(control.ReasonGuestShutdown)}},
		"the pod is being deleted while Running":     {following, changes{podDeleted}},
		"the VMI is being deleted and the pod runs":  {removing, changes{deleted}},
		"the VMI is being deleted, the pod is gone":  {removing, changes{deleted, none}},
		"the VMI has ended and is being deleted":     {removing, changes{deleted, is(v1.Failed)}},
		"the VMI is being deleted as it is new":      {removing, changes{deleted, none, is("")}},
		"the VMI is being deleted between two pods":  {removing, changes{deleted, moves(""), sent}},
		"the VMI is being deleted, the pod is fresh": {removing, changes{deleted, fresh}},

		"the pod was just made":                 {unseen, changes{fresh}},
		"the pod was made, and bound at once":   {following, changes{fresh, bound}},
		"no node takes the pod that was made":   {following, changes{fresh, noNode}},
		"the scheduler is away":                 {following, changes{fresh, later(time.Minute)}},
		"the pod was made by a clock far ahead": {following, changes{fresh, later(-time.Minute)}},
		"the pod was just made anew":            {following, changes{fresh, is(v1.Scheduling)}},

		"a node turned the pod away":                        {replacing, changes{turnedAway, is(v1.Scheduling)}},
		"a node turned the pod away, unreported":            {replacing, changes{turnedAway, is("")}},
		"a node turned the pod away after its guest ran":    {following, changes{turnedAway}},
		"a node turned the pod away after its launcher ran": {following, changes{turnedAway, is(v1.Scheduled)}},
		"the node evicted the pod before it ran":            {following, changes{evicted, is(v1.Scheduling)}},
		"the claim with the state is gone":                  {replacing, changes{noState, is(v1.Scheduling)}},
		"the pod that was turned away is gone":              {starting, changes{anew(v1.ReasonRejected)}},
		"the pod whose claim with the state was gone, too":  {starting, changes{anew(v1.ReasonPvcNotFound)}},
		"the next pod is refused":                           {starting, changes{anew(v1.ReasonFailedCreate)}},
		"the pod is gone while its network was slow":        {ending, changes{anew(v1.ReasonSandboxSlow)}},

		"the guest moves":                              {following, changes{moves("")}},
		"the source has sent all, undecided":           {crossing, changes{moves(""), sent}},
		"the source's QEMU dies as the guest moves":    {following, changes{moves(""), podEnds(control.ReasonQEMUExited)}},
		"the source has sent all, and is gone":         {crossing, changes{moves(""), none, saw(control.ReasonMigrated)}},
		"the source is gone, and nobody saw its end":   {crossing, changes{moves(""), none}},
		"the source's QEMU has died, and its pod gone": {ending, changes{moves(""), none, saw(control.ReasonQEMUExited)}},
		"the guest is in the target":                   {following, changes{arrives}},
		"the target refuses the guest":                 {crossing, changes{arrives, refuses}},
		"the target refuses it, the source has ended":  {following, changes{arrives, refuses, alone}},
		"the target refused the guest long ago":        {following, changes{arrives, refuses, later(giveBackPatience)}},
		"the target is gone":                           {ending, changes{arrives, none}},
		"the guest is given back":                      {following, changes{moves(v1.DecisionSource)}},
	} {
		w := usual(t)
		for _, change := range c.changes {
			change(&w)
		}
		if got := decide(w); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
