package migration

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// lookDelay is the time between two looks at a migration that is under way, for its timeouts.
const lookDelay = 15 * time.Second

// advance makes the target pod, tells the virt-handlers of each other, and follows what they report.
func (r *Reconciler) advance(ctx context.Context, w *work) (time.Duration, error) {
	if w.target == nil {
		return r.makeTarget(ctx, w)
	}
	status := &w.migration.Status
	status.RemoveCondition(v1.MigrationRejectedByResourceQuota)
	status.SetPhase(v1.MigrationScheduling, w.stamp())
	if !launches(w.target) {
		return lookDelay, nil
	}
	status.SetPhase(v1.MigrationScheduled, w.stamp())
	err := r.writeVMI(ctx, w, func(s *v1.VirtualMachineInstanceStatus) {
		s.MigrationState.TargetNode = w.target.Spec.NodeName
		repeat(s.MigrationState)
	})
	if err != nil {
		return 0, err
	}
	status.SetPhase(v1.MigrationPreparingTarget, w.stamp())
	if w.state().TargetNodeAddress != "" {
		status.SetPhase(v1.MigrationTargetReady, w.stamp())
	}
	if w.state().StartTimestamp != nil {
		status.SetPhase(v1.MigrationRunning, w.stamp())
	}
	return lookDelay, nil
}

// repeat copies what the virt-handlers report to where KubeVirt has it. It is pure.
func repeat(s *v1.VirtualMachineInstanceMigrationState) {
	if t := s.TargetState; t != nil {
		s.TargetNodeAddress, s.TargetNodeDomainDetected, s.TargetNodeDomainReadyTimestamp = t.NodeAddress, t.DomainDetected, t.DomainReadyTimestamp
	}
	if f := s.SourceState; f != nil && f.StartTimestamp != nil {
		s.StartTimestamp, s.Mode = f.StartTimestamp, v1.MigrationPreCopy
	}
	if s.PostCopy() {
		s.Mode = v1.MigrationPostCopy
	}
}

// launches says whether the launcher of a pod runs on its node.
func launches(pod *corev1.Pod) bool {
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running != nil {
			return pod.Spec.NodeName != ""
		}
	}
	return false
}

// noteWaiting writes into the migration which container of the target pod waits, and for what, as long as one does.
func noteWaiting(w *work) {
	status := &w.migration.Status
	c := waiting(w.target)
	if c == nil || w.state().Decision != "" {
		status.RemoveCondition(v1.MigrationTargetWaiting)
		return
	}
	// A registry may have said anything, and nothing bounds a reference.
	said, image := control.Printable(kit.WhyItWaits(c), maxReason), control.Printable(c.Image, maxReason/2)
	status.SetCondition(v1.VirtualMachineInstanceMigrationCondition{Type: v1.MigrationTargetWaiting,
		Status: metav1.ConditionTrue, Reason: c.State.Waiting.Reason,
		Message: fmt.Sprintf("container %s of the target pod, with the image %s, waits: %s", c.Name, image, said),
	}, w.stamp())
}

// waiting returns the container of which the kubelet says why it waits, of a pod whose launcher does not run; nil if
// there is none.
func waiting(pod *corev1.Pod) *corev1.ContainerStatus {
	if pod == nil || launches(pod) {
		return nil
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range list {
			if w := list[i].State.Waiting; w != nil && w.Message != "" {
				return &list[i]
			}
		}
	}
	return nil
}

// quotaDelay is the time between two attempts to make a target pod that the API server refuses.
const quotaDelay = 10 * time.Second

// makeTarget makes the target pod. The migration is Pending until there is one.
func (r *Reconciler) makeTarget(ctx context.Context, w *work) (time.Duration, error) {
	cluster, err := r.Cluster(ctx)
	if err != nil {
		return 0, err
	}
	config := cluster.Migrations()
	if room, err := r.hasRoom(ctx, w, config); err != nil || !room {
		return quotaDelay, err
	}
	if why, err := r.claims().Make(ctx, w.vmi, w.migration); apierrors.IsForbidden(err) || apierrors.IsConflict(err) {
		return r.refused(w, err)
	} else if apierrors.IsInvalid(err) {
		return 0, r.decideForSource(ctx, w, "a claim for the target cannot be made: "+err.Error())
	} else if err != nil {
		return 0, err
	} else if why != "" {
		return 0, r.decideForSource(ctx, w, why)
	}
	pod, room, err := r.TargetPod(ctx, w.vmi, w.migration)
	if err == nil {
		err = kit.CreatePod(ctx, r.Client, r.Live, pod, room)
	}
	status := &w.migration.Status
	switch {
	case err == nil:
		r.Events.Eventf(w.migration, pod, corev1.EventTypeNormal, "SuccessfulCreate", "Create", "Created migration target pod %s", pod.Name)
		status.RemoveCondition(v1.MigrationRejectedByResourceQuota)
		status.SetPhase(v1.MigrationScheduling, w.stamp())
		return lookDelay, nil
	case apierrors.IsInvalid(err): // trying again would not help
		return 0, r.decideForSource(ctx, w, "the target pod cannot be made: "+err.Error())
	case apierrors.IsAlreadyExists(err):
		if ours, getErr := r.pod(ctx, w.vmi, pod.Name, true); ours != nil || getErr != nil {
			return kit.WriteDelay, getErr // the cache is behind
		}
		return 0, r.decideForSource(ctx, w, fmt.Sprintf("a pod %q that is not the VirtualMachineInstance's is in the way; delete it", pod.Name))
	case apierrors.IsForbidden(err), apierrors.IsConflict(err): // a quota, or a quota that others use at the same time
		return r.refused(w, err)
	}
	return 0, fmt.Errorf("create target pod: %w", err)
}

// refused says that the API server refuses the target pod, or a claim of it. It keeps the first words: those of a quota name numbers that
// change all the time.
func (r *Reconciler) refused(w *work, err error) (time.Duration, error) {
	status := &w.migration.Status
	status.SetPhase(v1.MigrationPending, w.stamp())
	if status.Condition(v1.MigrationRejectedByResourceQuota) == nil && !apierrors.IsConflict(err) {
		r.Events.Eventf(w.migration, w.vmi, corev1.EventTypeWarning, v1.ReasonFailedCreate, "Create", "%s", err)
		status.SetCondition(v1.VirtualMachineInstanceMigrationCondition{Type: v1.MigrationRejectedByResourceQuota, Status: metav1.ConditionTrue, Reason: v1.ReasonFailedCreate,
			Message: bounded(err.Error())}, w.stamp())
	}
	return quotaDelay, nil
}
