package migration

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/claimcopy"
)

// claims returns what makes and deletes the claims of migrations.
func (r *Reconciler) claims() *claimcopy.Copier {
	return &claimcopy.Copier{Client: r.Client, Live: r.Live, Events: r.Events}
}

// leaveClaims deletes the claims that nobody counts on after a migration: those that a failed one has made, and the one
// that the guest's state has left.
func (r *Reconciler) leaveClaims(ctx context.Context, w *work) error {
	switch {
	case w.migration.Status.Phase == v1.MigrationFailed:
		return r.claims().Remove(ctx, w.migration)
	case w.mine():
		return r.claims().HandOver(ctx, w.vmi)
	}
	return nil
}

// freeClaims deletes a source pod that has ended, if it has claims that the guest has left. Kubernetes deletes no claim
// that a pod names, even if the pod has ended.
func (r *Reconciler) freeClaims(ctx context.Context, vmi *v1.VirtualMachineInstance, ended *corev1.Pod) error {
	pod := &corev1.Pod{} // the cache has no volumes
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(ended), pod); err != nil {
		return client.IgnoreNotFound(err)
	}
	state := ""
	if m := vmi.Status.MigrationState; m != nil {
		state = m.TargetPersistentStatePVCName
	}
	left := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		claim := v.PersistentVolumeClaim
		return claim != nil && claim.ClaimName != state && vmi.VolumeOn(claim.ClaimName) == nil
	})
	if !left {
		return nil
	}
	if err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &ended.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete source pod, whose claims the guest has left: %w", err)
	}
	return nil
}
