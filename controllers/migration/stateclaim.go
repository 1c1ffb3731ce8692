package migration

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/stateclaim"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// This file makes the claim for the state of a guest that leaves a claim which only one node can use. After the migration it deletes the claim that the
// state is not on.

// makeStateClaim makes the claim for the guest's state at the target. why is why it can never be done.
func (r *Reconciler) makeStateClaim(ctx context.Context, w *work) (why string, err error) {
	m := w.state()
	if !stateclaim.IsCopied(m) {
		return "", nil
	}
	there := &corev1.PersistentVolumeClaim{}
	switch err := r.Live.Get(ctx, client.ObjectKey{Namespace: w.vmi.Namespace, Name: m.TargetPersistentStatePVCName}, there); {
	case err == nil && there.Labels[v1.StateCopyLabel] == string(m.MigrationUID) && stateclaim.IsOwned(w.vmi, there):
		if there.DeletionTimestamp != nil {
			return fmt.Sprintf("the claim %q, to which the guest's state was to move, is being deleted", there.Name), nil
		}
		return "", nil
	case err == nil:
		return fmt.Sprintf("a claim %q that is not the migration's is in the way; delete it", there.Name), nil
	case !apierrors.IsNotFound(err):
		return "", fmt.Errorf("get claim %s: %w", m.TargetPersistentStatePVCName, err)
	}
	from := &corev1.PersistentVolumeClaim{}
	switch err := r.Live.Get(ctx, client.ObjectKey{Namespace: w.vmi.Namespace, Name: m.SourcePersistentStatePVCName}, from); {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the claim %q with the guest's state is gone", m.SourcePersistentStatePVCName), nil
	case err != nil:
		return "", fmt.Errorf("get claim %s: %w", m.SourcePersistentStatePVCName, err)
	case from.DeletionTimestamp != nil:
		return fmt.Sprintf("the claim %q with the guest's state is being deleted", from.Name), nil
	case !stateclaim.IsOwned(w.vmi, from):
		return fmt.Sprintf("the claim %q with the guest's state does not have the label %s and the owner of such a claim any more", from.Name, v1.StateClaimLabel), nil
	}
	if why, err := r.countsTwice(ctx, w, from); why != "" || err != nil {
		return why, err
	}
	if stateclaim.Owner(w.vmi).Kind == v1.VirtualMachineGroupVersionKind.Kind {
		if gone, err := r.withoutVM(ctx, w.vmi); gone || err != nil {
			return "the VirtualMachine, to which the claim with the guest's state would belong, is gone", err
		}
	}
	claim := stateclaim.Copy(w.vmi, from)
	if err := kit.SortedRefusal(r.Client.Create(ctx, claim)); err != nil {
		return "", fmt.Errorf("create claim %s for the guest's state: %w", claim.Name, err)
	}
	r.Events.Eventf(w.migration, claim, corev1.EventTypeNormal, "SuccessfulCreate", "Create", "Created claim %s, to which the guest's state moves", claim.Name)
	return "", nil
}

// countsTwice is why the state cannot leave a claim that is itself a copy of a claim which is there to stay; empty if it can. After the move both
// would count, and the old one of them would win. handOverLast has deleted that old claim if it could.
func (r *Reconciler) countsTwice(ctx context.Context, w *work, from *corev1.PersistentVolumeClaim) (why string, err error) {
	name := from.Annotations[v1.StateCopyOfAnnotation]
	if name == "" || name == from.Name {
		return "", nil
	}
	older := &corev1.PersistentVolumeClaim{}
	err = r.Live.Get(ctx, client.ObjectKey{Namespace: w.vmi.Namespace, Name: name}, older)
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("get claim %s: %w", name, err)
	case older.DeletionTimestamp != nil || !stateclaim.IsOwned(w.vmi, older):
		return "", nil
	}
	return fmt.Sprintf("the guest's state is on the claim %q, and the claim %q, which the state has left, is still there: a start of the VM would use it. "+
		"Delete the claim %q, and migrate the guest again", from.Name, name, name), nil
}

// handOverLast hands the state over to the copy of the VMI's last migration, if nobody has done so: somebody may have removed the migration's object
// before virt-controller could. The status forgets that migration when the next one begins.
func (r *Reconciler) handOverLast(ctx context.Context, w *work) error {
	handed, err := stateclaim.HandOver(ctx, r.Client, r.Live, w.vmi)
	if handed.Kept != "" {
		r.Events.Eventf(w.vmi, nil, corev1.EventTypeWarning, v1.ReasonStateLeft, "Migrate", "%s", handed.Kept)
	}
	return err
}

// leaveStateClaim deletes the claim that the state of a guest has left which has moved.
func (r *Reconciler) leaveStateClaim(ctx context.Context, w *work) error {
	if w.migration.Status.Phase != v1.MigrationSucceeded || !w.mine() {
		return nil
	}
	handed, err := stateclaim.HandOver(ctx, r.Client, r.Live, w.vmi)
	switch {
	case handed.Deleted != "":
		r.Events.Eventf(w.migration, nil, corev1.EventTypeNormal, "SuccessfulDelete", "Delete", "Deleted claim %s, which the guest's state has left", handed.Deleted)
	case handed.Kept != "":
		r.Events.Eventf(w.vmi, w.migration, corev1.EventTypeWarning, v1.ReasonStateLeft, "Migrate", "%s", handed.Kept)
	}
	return err
}

// removeStateClaim deletes the claim that a failed migration has made for the guest's state. It keeps a claim that has the state: the guest may have
// ended on the target.
func (r *Reconciler) removeStateClaim(ctx context.Context, migration *v1.VirtualMachineInstanceMigration) error {
	var list corev1.PersistentVolumeClaimList
	if err := r.Live.List(ctx, &list, client.InNamespace(migration.Namespace), client.MatchingLabels{v1.StateCopyLabel: string(migration.UID)}); err != nil {
		return fmt.Errorf("list the claims that the migration made for the guest's state: %w", err)
	}
	for i := range list.Items {
		claim := &list.Items[i]
		if claim.DeletionTimestamp != nil || !belongsToGuest(claim) || claim.Labels[v1.StateClaimLabel] != v1.LabelOfName(migration.Spec.VMIName) {
			continue
		}
		if has, err := r.hasState(ctx, migration, claim); err != nil {
			return err
		} else if has {
			continue
		}
		if err := r.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete claim %s: %w", claim.Name, err)
		}
	}
	return nil
}

// belongsToGuest says whether a VM or a VMI controls a claim. Otherwise somebody has taken the claim away.
func belongsToGuest(claim *corev1.PersistentVolumeClaim) bool {
	return owner.Reference(claim, v1.VirtualMachineGroupVersionKind.GroupKind()) != nil || owner.Reference(claim, v1.VirtualMachineInstanceGroupVersionKind.GroupKind()) != nil
}

// hasState says whether a guest's state is on the claim that a failed migration made: the guest has ended at the target, or the claim that the state left
// is gone. Nothing counts on the claim of a migration of which it was not decided that the guest runs at the target. A claim that does not say what it
// is a copy of has the state, too: somebody has changed the claim, and may want it.
func (r *Reconciler) hasState(ctx context.Context, migration *v1.VirtualMachineInstanceMigration, claim *corev1.PersistentVolumeClaim) (bool, error) {
	vmi := &v1.VirtualMachineInstance{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: migration.Spec.VMIName}, vmi)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get VMI %s: %w", migration.Spec.VMIName, err)
	}
	m := vmi.Status.MigrationState
	if last := m != nil && m.MigrationUID == migration.UID; last && m.Decision != v1.DecisionTarget {
		return false, nil
	} else if last && stateclaim.HasMoved(vmi) {
		return true, nil
	}
	of := claim.Annotations[v1.StateCopyOfAnnotation]
	if len(validation.IsDNS1123Subdomain(of)) > 0 {
		return true, nil
	}
	from := &corev1.PersistentVolumeClaim{}
	err = r.Live.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: of}, from)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get claim %s: %w", of, err)
	}
	return err != nil || from.DeletionTimestamp != nil, nil
}
