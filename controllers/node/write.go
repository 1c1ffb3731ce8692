package node

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// said is what a launcher has said by the end of a step's acts.
type said struct {
	state control.StateReport
	// agent is nil while the launcher has sent no report of the guest's agent on this connection.
	agent   *control.AgentReport
	silent  bool
	network map[string]networkFacts
}

// hear returns what a launcher has said.
func hear(w world) said {
	l := w.launcher
	return said{state: l.State(), agent: l.Agent(), silent: l.Silent(), network: networkOf(l, w.vmi, w.ips)}
}

// write writes the VMI's status once, if what a step tells changes it, and makes the events of it.
func (r *Reconciler) write(ctx context.Context, w world, s *step) error {
	if s.tell == tellNothing {
		return nil
	}
	object, now := w.vmi.DeepCopy(), metav1.NewTime(r.Clock.Now())
	switch s.tell {
	case tellGone:
		reportGone(object, notConnected, now)
	case tellForeign:
		reportForeign(object, w.foreign, now)
	case tellGuest:
		reportGuest(object, hear(w), s.failure, now)
		// Only a guest that runs by its status gets the scheduler. The status says how that went.
		s.after = kit.Sooner(s.after, r.speed(ctx, object, w.launcher, now))
	}
	if err := r.writeStatus(ctx, w.vmi, object); err != nil {
		return err
	}
	if s.tell == tellGuest {
		r.announcePing(object, w.launcher)
	}
	return nil
}

// reportGuest brings a VMI's status up to date with what its launcher has said, in this order. It is pure.
func reportGuest(object *v1.VirtualMachineInstance, heard said, failure error, now metav1.Time) {
	before := object.DeepCopy()
	// The launcher's report is what the others add to, or take back.
	report(object, heard.state, heard.network, now)
	// The guest's agent says more of the interfaces that are in the status now.
	if heard.agent == nil && withAgent(heard.state) {
		keepAgentReport(object, before)
	} else {
		reportAgent(object, ptr.Deref(heard.agent, control.AgentReport{}), now)
	}
	// A launcher or QEMU that does not answer takes back Ready.
	reportSilence(object, before, heard.state, heard.silent, now)
	reportTPM(object, heard.state, now)
	reportNUMA(object, now)
	// Why the guest does not start comes last, because a guest that runs ends such a complaint.
	if failure != nil {
		startFailed(object, failure, now)
	}
}

// writeStatus writes what has changed in a VMI's status, and makes events of it.
func (r *Reconciler) writeStatus(ctx context.Context, before, object *v1.VirtualMachineInstance) error {
	told := keepTerminating(before, object)
	if equality.Semantic.DeepEqual(before.Status, object.Status) {
		return nil
	}
	if err := kit.PatchStatus(ctx, r.Client, before, object); err != nil {
		return kit.IgnoreConflict(err)
	}
	r.writes.Note(before, object)
	r.announce(before, object, told)
	return nil
}

// keepTerminating leaves virt-controller's word in Ready that the launcher pod is being deleted, and adds what
// virt-handler says of the guest. It returns the condition as virt-handler says it, or nil.
func keepTerminating(before, object *v1.VirtualMachineInstance) *v1.VirtualMachineInstanceCondition {
	ready, old := object.Status.Condition(v1.ConditionReady), before.Status.Condition(v1.ConditionReady)
	if ready == nil || old == nil || old.Reason != v1.ReasonPodTerminating || ready.Reason == v1.ReasonPodTerminating {
		return ready
	}
	told := *ready
	*ready = v1.Terminating(&told)
	ready.LastTransitionTime = old.LastTransitionTime
	return &told
}
