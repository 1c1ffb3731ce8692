package vmi

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// noteEnd brings the status of a deleted VMI up to date with the pod. When the pod has ended, its status says how
// the VM ended.
func (r *Reconciler) noteEnd(_ context.Context, t *turn) (time.Duration, error) {
	status := &t.vmi.Status
	switch {
	case t.vmi.IsFinal():
	case t.pod != nil:
		observe(status, t.pod, r.now())
	case status.Phase != "":
		finish(status, t.lastWord(end{v1.Succeeded, v1.ReasonPodDeleted, "the launcher pod is gone"}), r.now())
	}
	return 0, nil
}

// removePods deletes the pods of a deleted VMI. The deletion asks the guest to shut down, and works also while
// virt-handler is down.
func (r *Reconciler) removePods(ctx context.Context, t *turn) (time.Duration, error) {
	var errs []error
	if pod := t.pod; pod != nil && pod.DeletionTimestamp == nil {
		err := r.deletePod(ctx, pod)
		if err == nil {
			r.Events.Eventf(t.vmi, pod, corev1.EventTypeNormal, "SuccessfulDelete", "Delete",
				"Deleted virtual machine pod %s", pod.Name)
		}
		errs = append(errs, kit.IgnoreConflict(err))
	}
	for _, pod := range t.companions {
		errs = append(errs, kit.IgnoreConflict(r.deletePod(ctx, pod)))
	}
	return 0, errors.Join(errs...)
}

// goneDelay is how much longer than its grace period a pod may take to end before its node counts as gone.
const goneDelay = 10 * time.Second

// holdUp reports whether a companion keeps a deleted VMI from going. A pod on a node that does not answer does
// not, if it is decided that its guest does not run there. It is pure.
func holdUp(w world) bool {
	for name, pod := range w.companions {
		m := w.vmi.Status.MigrationState
		elsewhere := m != nil && (m.Decision == v1.DecisionSource && name == m.TargetPod ||
			m.Decision == v1.DecisionTarget && name == m.SourcePod)
		if !elsewhere || pod.DeletionTimestamp == nil || w.now.Sub(pod.DeletionTimestamp.Time) < goneDelay {
			return true
		}
	}
	return false
}

// release removes the finalizer of a deleted VMI whose pod is gone.
func (r *Reconciler) release(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	r.ends.forget(vmi.UID)
	freed := vmi.DeepCopy()
	if !controllerutil.RemoveFinalizer(freed, v1.VMIFinalizer) {
		return nil
	}
	patch := client.MergeFromWithOptions(vmi, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, freed, patch); err != nil {
		return fmt.Errorf("remove finalizer: %w", err)
	}
	return nil
}
