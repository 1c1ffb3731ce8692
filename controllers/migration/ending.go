package migration

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/stateclaim"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Times after which virt-controller ends a migration, KubeVirt's but for the last two.
const (
	// unscheduledTimeout is how long a target pod may wait for a node.
	unscheduledTimeout = 5 * time.Minute
	// prepareTimeout is how long it may take from the target pod's creation until the copying begins, and how long a
	// quota may refuse the pod.
	prepareTimeout = 15 * time.Minute
	// copyTimeout is the longest that a migration may take. The source's virt-handler and its launcher end a migration by limits of their own. These
	// count from the start of copying and are v1.MaxMigrationTime at most, so that they come first, with their reason.
	copyTimeout = v1.MaxMigrationTime + prepareTimeout + 5*time.Minute
	// lostTimeout is how long the target has to decide after the source's pod is gone. Its virt-handler may be
	// restarted meanwhile.
	lostTimeout = time.Minute
	// undecidedTimeout is how long a guest that goes on by post-copy may run nowhere.
	undecidedTimeout = 10 * time.Minute
	// overdue is how long a migration may take to end, after it is decided where the guest runs, until it takes no place of others. A launcher whose
	// image is a tenant's may say for ever that it has the guest, or may not end. If the guest is to run on the target, the migration goes on: the
	// guest may run there, on a node that does not answer.
	overdue = 10 * time.Minute
	// targetGrace bounds the grace period of a target pod whose guest stays on the source. The pod has the VMI's, which may be years.
	targetGrace = 30 * time.Second
)

// giveUp is why a migration without a decision is to end; empty if it is to go on. It is pure.
func giveUp(w *work) string {
	m, s := w.migration, w.state()
	passed, begun := w.passed, m.Status.Entered(v1.MigrationScheduling)
	switch {
	case w.vmi.IsFinal():
		return "the guest has ended"
	case w.target != nil && over(w.target):
		return "the target pod has ended" + after(": ", lastWords(w.target))
	case w.lost && w.left <= lostTimeout && w.target != nil:
		return "" // the target may have the only copy of the guest
	case w.lost:
		return "the source pod is gone"
	// From the word post-copy on, the guest may be able to run on the target alone, and only there it can shut down.
	case m.DeletionTimestamp != nil && !s.PostCopy():
		return "the migration was cancelled"
	case w.vmi.DeletionTimestamp != nil && !s.PostCopy():
		return "the VirtualMachineInstance is being deleted"
	// A target pod on the guest's own node may wait for room there, or for its network, until the end of prepareTimeout. A drain does not.
	case (w.target == nil || m.StaysOnNode() && s.StartTimestamp == nil) && moot(m, w.vmi, w.drained) != "":
		return moot(m, w.vmi, w.drained)
	case unwanted(w.vmi) != "" && !s.PostCopy():
		return unwanted(w.vmi)
	case w.target == nil && m.IsUnderway():
		return "the target pod was deleted"
	case w.target == nil:
		if c := m.Status.Condition(v1.MigrationRejectedByResourceQuota); c != nil && passed(c.LastTransitionTime, prepareTimeout) {
			return "the API server refused the target pod, or a claim of it, for " + prepareTimeout.String() + ": " + c.Message
		}
		return ""
	case w.target.DeletionTimestamp != nil:
		return "the target pod is being deleted"
	case s.TargetState != nil && s.TargetState.Failure != "":
		return s.TargetState.Failure
	case w.unscheduled():
		return fmt.Sprintf("no node took the target pod within %s%s%s", unscheduledTimeout, after(": ", unscheduled(w.target)), after("; ", w.ruledOut))
	case s.StartTimestamp == nil && passed(begun, prepareTimeout):
		return fmt.Sprintf("the target was not ready within %s%s", prepareTimeout, after(": ", held(m)))
	// The clock of the source's node may be ahead.
	case s.PostCopy() && (passed(*s.SourceState.PostCopyTimestamp, undecidedTimeout) || passed(begun, copyTimeout+undecidedTimeout)):
		return fmt.Sprintf("the guest left by post-copy, and the target did not take it within %s", undecidedTimeout)
	case passed(begun, copyTimeout) && !s.PostCopy():
		return fmt.Sprintf("the migration did not end within %s", copyTimeout)
	}
	return ""
}

// passed says whether a time is longer ago than a limit.
func (w *work) passed(since metav1.Time, limit time.Duration) bool {
	return !since.IsZero() && w.now.Sub(since.Time) > limit
}

// unscheduled says whether no node has taken the target pod in time.
func (w *work) unscheduled() bool {
	return w.target != nil && w.target.Spec.NodeName == "" && w.passed(w.migration.Status.Entered(v1.MigrationScheduling), unscheduledTimeout)
}

// explainTarget finds out which labels of CPUs keep the target pod off the nodes, if no node has taken it in time. The scheduler names no label.
func (r *Reconciler) explainTarget(ctx context.Context, w *work) (err error) {
	if r.RuledOut != nil && w.unscheduled() {
		w.ruledOut, err = r.RuledOut(ctx, w.target)
	}
	return err
}

// leftBehind says whether a source's pod has ended after its launcher had sent all of the guest.
func leftBehind(pod *corev1.Pod) bool {
	said, ok := termination(pod)
	return ok && said.Reason == control.ReasonMigrated
}

// termination is what the launcher of a pod said as it ended.
func termination(pod *corev1.Pod) (said control.Termination, ok bool) {
	for _, c := range pod.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil && json.Unmarshal([]byte(t.Message), &said) == nil {
			return said, said.Reason.Known()
		}
	}
	return said, false
}

// sightings are when something was first seen of migrations.
type sightings struct {
	mu   sync.Mutex
	from map[types.UID]time.Time
}

// since notes that it is seen of a migration now, and returns how long ago it was first seen.
func (s *sightings) since(migration types.UID, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from == nil {
		s.from = map[types.UID]time.Time{}
	}
	if _, known := s.from[migration]; !known {
		s.from[migration] = now
	}
	return now.Sub(s.from[migration])
}

func (s *sightings) forget(migration types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.from, migration)
}

func after(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}

// held returns what the target pod of a migration waits for; "" if nothing is known.
func held(m *v1.VirtualMachineInstanceMigration) string {
	if c := m.Status.Condition(v1.MigrationTargetWaiting); c != nil {
		return c.Message
	}
	return ""
}

// lastWords is what is known of the end of a pod. A launcher is a tenant's, so its words are made printable.
func lastWords(pod *corev1.Pod) string {
	if said, ok := termination(pod); ok {
		return control.Short(said.Message)
	}
	if who := kit.WhoFailed(pod); who != "" {
		return who
	}
	return control.Short(strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message))
}

// unscheduled is the scheduler's complaint about a pod.
func unscheduled(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}

// maxReason bounds the reason of a failure, in bytes.
const maxReason = 1024

// decideForSource ends a migration. It fails with a conflict if the target has the guest already.
func (r *Reconciler) decideForSource(ctx context.Context, w *work, why string) error {
	return r.writeVMI(ctx, w, func(status *v1.VirtualMachineInstanceStatus) {
		s := status.MigrationState
		s.Decision, s.FailureReason = v1.DecisionSource, bounded(why)
		if w.migration.DeletionTimestamp != nil {
			s.AbortRequested, s.AbortStatus = true, v1.MigrationAborting
		}
	})
}

func bounded(text string) string { return control.Cut(text, maxReason) }

// noteCancel says in the migration that it was deleted.
func (r *Reconciler) noteCancel(w *work) {
	if w.migration.DeletionTimestamp == nil {
		return
	}
	c := v1.VirtualMachineInstanceMigrationCondition{Type: v1.MigrationAbortRequested, Status: metav1.ConditionTrue}
	if w.state().PostCopy() {
		c.Reason, c.Message = "PostCopy", "the migration cannot be cancelled any more: the guest's memory follows the guest to node "+w.state().TargetNode
	}
	w.migration.Status.SetCondition(c, w.stamp())
}

// notePostCopy says in the migration that it cannot go on by post-copy, although it may.
func (r *Reconciler) notePostCopy(w *work) {
	if s := w.state().SourceState; s != nil && s.PostCopyRefused != "" {
		w.migration.Status.SetCondition(v1.VirtualMachineInstanceMigrationCondition{Type: v1.MigrationPostCopyRefused, Status: metav1.ConditionTrue, Reason: "NotPossible",
			Message: "the memory is copied before the guest runs on the target: " + bounded(s.PostCopyRefused)}, w.stamp())
	}
}

// end takes a migration to its end, in memory.
func end(w *work, why string) {
	status := &w.migration.Status
	if why == "" {
		status.SetPhase(v1.MigrationSucceeded, w.stamp())
		return
	}
	status.SetPhase(v1.MigrationFailed, w.stamp())
	if status.MigrationState == nil {
		status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: w.migration.UID, MigrationName: w.migration.Name}
	}
	now, s := w.stamp(), status.MigrationState
	s.Failed, s.Completed, s.FailureReason, s.EndTimestamp = true, true, bounded(why), &now
	if w.migration.DeletionTimestamp != nil {
		s.AbortRequested, s.AbortStatus = true, v1.MigrationAbortSucceeded
	}
}

// goneDelay is how much longer than its grace period a target pod may take to end. The kubelet of its node may not
// answer. The guest cannot run there, because the decision says so.
const goneDelay = 10 * time.Second

// fail ends a migration whose guest stays on the source. The target pod goes first.
func (r *Reconciler) fail(ctx context.Context, w *work) (time.Duration, error) {
	if w.target == nil { // the cache may be behind
		var err error
		if w.target, err = r.pod(ctx, w.vmi, w.state().TargetPod, true); err != nil {
			return 0, err
		}
	}
	if t := w.target; t != nil {
		late := r.decided.since(w.migration.UID, w.now) > overdue
		if t.DeletionTimestamp == nil || !late && t.DeletionTimestamp.Sub(w.now) > targetGrace+goneDelay {
			if err := r.Client.Delete(ctx, t, client.Preconditions{UID: &t.UID}, graceOf(t)); client.IgnoreNotFound(err) != nil {
				return 0, fmt.Errorf("delete target pod: %w", err)
			}
			return lookDelay, nil
		}
		if wait := t.DeletionTimestamp.Add(goneDelay).Sub(w.now); wait > 0 && !late {
			return min(wait, lookDelay), nil
		}
	}
	now := w.stamp()
	err := r.writeVMI(ctx, w, func(status *v1.VirtualMachineInstanceStatus) {
		s := status.MigrationState
		status.Settle()
		repeat(s)
		s.FailureReason = failure(s)
		s.Failed, s.Completed, s.EndTimestamp = true, true, &now
		status.MigratedVolumes = nil
		if s.AbortRequested {
			s.AbortStatus = v1.MigrationAbortSucceeded
		}
	})
	if err != nil {
		return 0, err
	}
	end(w, w.state().FailureReason)
	return 0, nil
}

// graceOf returns the grace period with which a target pod without a guest is deleted.
func graceOf(target *corev1.Pod) client.GracePeriodSeconds {
	most := int64(targetGrace / time.Second)
	return client.GracePeriodSeconds(min(ptr.Deref(target.Spec.TerminationGracePeriodSeconds, most), most))
}

// failure is why a migration has failed: virt-controller's reason, or else the nodes'. Of these the source's comes first: mostly a target ends
// because the source has given up.
func failure(s *v1.VirtualMachineInstanceMigrationState) string {
	own, source, target := s.FailureReason, "", ""
	if s.SourceState != nil {
		source = s.SourceState.Failure
	}
	if s.TargetState != nil {
		target = s.TargetState.Failure
	}
	if own == target { // virt-controller has read it there
		own = ""
	}
	switch {
	case own != "" && source != "" && source != own:
		own += "; the source says: " + source
	case own == "" && source != "" && target != "":
		own = source + "; the target says: " + target
	}
	return bounded(cmp.Or(own, source, target, "the guest stays where it is"))
}

// arrive ends a migration when the guest runs on the target.
func (r *Reconciler) arrive(ctx context.Context, w *work) (time.Duration, error) {
	now, why := w.stamp(), ""
	switch s := w.state(); {
	case s.TargetState != nil && s.TargetState.DomainReadyTimestamp != nil:
		// The clock of the target's node may be ahead.
		if wait := reportPatience - w.now.Sub(s.TargetState.DomainReadyTimestamp.Time); wait > 0 && wait <= reportPatience && !measured(s) {
			return wait, nil
		}
	case w.vmi.IsFinal():
		why = "the guest has ended before it ran on the target"
		if s.PostCopy() {
			why = "the guest has ended before all of its memory was on the target"
		}
	case r.comesBack(ctx, w):
		return 0, r.giveBack(ctx, w)
	default:
		return lookDelay, r.writeVMI(ctx, w, func(status *v1.VirtualMachineInstanceStatus) { repeat(status.MigrationState) })
	}
	if renamed, err := r.nameClaims(ctx, w); renamed || err != nil {
		return 0, err // its event brings us back
	}
	if w.orphan && why == "" { // nobody comes back to a migration that has ended, and has no object
		if err := r.claims().HandOver(ctx, w.vmi); err != nil {
			return 0, err
		}
	}
	err := r.writeVMI(ctx, w, func(status *v1.VirtualMachineInstanceStatus) {
		s := status.MigrationState
		status.Settle()
		repeat(s)
		s.Completed, s.Failed, s.FailureReason, s.EndTimestamp = true, why != "", why, &now
		status.MigratedVolumes = nil
		if w.migration.DeletionTimestamp != nil {
			s.AbortRequested, s.AbortStatus = true, v1.MigrationAbortFailed
		}
	})
	if err != nil {
		return 0, err
	}
	end(w, why)
	return 0, nil
}

// comesBack says whether the source may have the guest again, although it was decided that the guest runs on the target:
// the target has ended, and nobody knows that the guest ran there. If it did, it wrote only to disks that end with it, so that the
// source's memory and disks are still of one moment, and nothing is lost that would last. After post-copy the target's launcher must say that the
// guest never ran: what it wrote to its memory there is not at the source.
func (r *Reconciler) comesBack(ctx context.Context, w *work) bool {
	if w.target == nil || !over(w.target) || w.state().PostCopy() && !neverRan(w.target) || w.vmi.SharesDisks() || outlives(w.vmi) && !neverRan(w.target) {
		return false
	}
	source, err := r.pod(ctx, w.vmi, w.state().SourcePod, false)
	return err == nil && source != nil && !over(source) && source.DeletionTimestamp == nil
}

// outlives says whether the guest writes to something at the target that outlives it, beside shared disks: disks that are copied to other claims, or its
// state on a claim that both nodes use. The source's TPM would go on there in a folder that does not count any more. A copy of the claim is deleted.
func outlives(vmi *v1.VirtualMachineInstance) bool {
	return len(vmi.Status.MigratedVolumes) > 0 || vmi.Spec.StateClaim() && !stateclaim.IsCopied(vmi.Status.MigrationState)
}

// neverRan says whether a target's launcher says that its guest never ran. A disk on a claim outlives the guest, and so does what the
// guest may have written to it.
func neverRan(target *corev1.Pod) bool {
	said, ok := termination(target)
	return ok && (said.Reason == control.ReasonNeverStarted || said.Reason == control.ReasonStartFailed)
}

// giveBack decides for the source.
func (r *Reconciler) giveBack(ctx context.Context, w *work) error {
	return r.writeVMI(ctx, w, func(status *v1.VirtualMachineInstanceStatus) {
		s := status.MigrationState
		s.Decision, s.FailureReason = v1.DecisionSource, bounded("the target pod has ended before it was reported that the guest ran there"+after(": ", lastWords(w.target)))
		status.Settle()
	})
}

func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// reportPatience is how long the source's virt-handler has to report how long the guest stood still.
const reportPatience = 5 * time.Second

func measured(s *v1.VirtualMachineInstanceMigrationState) bool {
	return s.SourceState != nil && s.SourceState.Progress != nil && s.SourceState.Progress.DowntimeMilliseconds > 0
}

const (
	// releasePatience is how long the source's virt-handler has to end the source's launcher, after the guest
	// ran on the target. Its node may be gone.
	releasePatience = 30 * time.Second
	// kept is how many ended migrations of a VMI are kept.
	kept = 5
)

// conclude cleans up after a migration that has ended.
func (r *Reconciler) conclude(ctx context.Context, w *work) (time.Duration, error) {
	if wait, err := r.endSource(ctx, w); wait > 0 || err != nil {
		return wait, err
	}
	if hasFinalizer(w.migration) {
		if err := r.leaveClaims(ctx, w); err != nil {
			return 0, err
		}
		freed := w.migration.DeepCopy()
		freed.Finalizers = slices.DeleteFunc(freed.Finalizers, func(f string) bool { return f == v1.MigrationFinalizer })
		if err := r.Client.Patch(ctx, freed, client.MergeFromWithOptions(w.migration, client.MergeFromWithOptimisticLock{})); err != nil {
			return 0, fmt.Errorf("remove finalizer: %w", err)
		}
	}
	return 0, r.dropOldest(ctx, w.migration)
}

func hasFinalizer(m *v1.VirtualMachineInstanceMigration) bool {
	return slices.Contains(m.Finalizers, v1.MigrationFinalizer)
}

// endSource deletes the source pod of a migration that has succeeded, if virt-handler has not ended it. It returns
// how long to wait before that.
func (r *Reconciler) endSource(ctx context.Context, w *work) (time.Duration, error) {
	s := w.migration.Status.MigrationState
	switch {
	case w.migration.Status.Phase != v1.MigrationSucceeded || s == nil || s.EndTimestamp == nil || w.vmi == nil:
		return 0, nil
	case s.SourcePod == w.vmi.LauncherPod(): // the VMI's controller is about to write where the guest is
		return time.Second, nil
	}
	pod, err := r.pod(ctx, w.vmi, s.SourcePod, false)
	switch {
	case pod == nil || err != nil || pod.DeletionTimestamp != nil:
		return 0, err
	case over(pod) && hasFinalizer(w.migration):
		return 0, r.freeClaims(ctx, w.vmi, pod)
	case over(pod):
		return 0, nil
	}
	if wait := releasePatience - w.now.Sub(s.EndTimestamp.Time); wait > 0 {
		return wait, nil
	}
	if err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("delete source pod: %w", err)
	}
	return 0, nil
}

// dropOldest deletes the oldest ended migrations of a VMI, so that few are kept.
func (r *Reconciler) dropOldest(ctx context.Context, m *v1.VirtualMachineInstanceMigration) error {
	list, err := r.list(ctx, client.InNamespace(m.Namespace), client.MatchingFields{nameIndex: m.Spec.VMIName})
	if err != nil {
		return fmt.Errorf("list migrations: %w", err)
	}
	ended := slices.DeleteFunc(slices.Clone(list), func(m v1.VirtualMachineInstanceMigration) bool { return !m.IsFinal() || m.DeletionTimestamp != nil })
	slices.SortFunc(ended, func(a, b v1.VirtualMachineInstanceMigration) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for len(ended) > kept {
		old := ended[0]
		ended = ended[1:]
		if err := r.Client.Delete(ctx, &old, client.Preconditions{UID: &old.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete migration %s: %w", old.Name, err)
		}
	}
	return nil
}
