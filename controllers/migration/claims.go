package migration

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// This file makes the claims to which a migration copies disks that only one node can use. If the migration fails, this
// file deletes the new claims. If the migration succeeds, package vm deletes the old claims.

// copies says between which claims a migration of a VMI copies. It is pure. A migration that was not made for it copies to a claim that a user
// named only if the guest could not move otherwise: a claim that cannot take the disk must not keep the guest on a node that is being
// drained.
func copies(vmi *v1.VirtualMachineInstance, migration *v1.VirtualMachineInstanceMigration) []v1.StorageMigratedVolumeInfo {
	var out []v1.StorageMigratedVolumeInfo
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		has := vmi.Status.ClaimInfo(v.Name)
		if has == nil || v.Claim() == nil {
			continue
		}
		to := vmi.MovesTo(v.Name).DeepCopy()
		if to != nil && isOn(vmi, to.ClaimName) {
			to = nil // another disk of the guest is there, and the VM's controller is about to notice that
		}
		shared := slices.Contains(has.AccessModes, corev1.ReadWriteMany)
		if migration.Annotations[v1.VolumeUpdateAnnotation] == "" && (shared || vmi.CopiesClaim(v.Name)) {
			to = nil
		}
		switch {
		case to == nil && !vmi.CopiesClaim(v.Name):
			continue
		case to == nil:
			to = has.DeepCopy()
			to.ClaimName, to.Capacity = v1.CopyName(v.Claim().Name, migration.UID), nil
		}
		out = append(out, v1.StorageMigratedVolumeInfo{VolumeName: v.Name, SourcePVCInfo: has.DeepCopy(), DestinationPVCInfo: to})
	}
	return out
}

// makeClaims makes the claims of the target, but for those that a user named. why is why it can never be done: somebody else's
// claim has the name, or a claim is gone.
func (r *Reconciler) makeClaims(ctx context.Context, w *work) (why string, err error) {
	for i := range w.vmi.Status.MigratedVolumes {
		m := &w.vmi.Status.MigratedVolumes[i]
		if m.SourcePVCInfo == nil || m.DestinationPVCInfo == nil {
			continue
		}
		there := &corev1.PersistentVolumeClaim{}
		key := client.ObjectKey{Namespace: w.vmi.Namespace, Name: m.DestinationPVCInfo.ClaimName}
		switch err := r.Live.Get(ctx, key, there); {
		case err == nil && there.Labels[v1.CopyOfLabel] == string(w.migration.UID):
			continue
		case err == nil && !w.vmi.Makes(m) && there.DeletionTimestamp != nil:
			return fmt.Sprintf("the claim %q, to which the disk is to be copied, is being deleted", key.Name), nil
		case err == nil && !w.vmi.Makes(m):
			continue
		case err == nil:
			return fmt.Sprintf("a claim %q that is not the migration's is in the way; delete it", key.Name), nil
		case !apierrors.IsNotFound(err):
			return "", fmt.Errorf("get claim %s: %w", key.Name, err)
		case !w.vmi.Makes(m):
			return fmt.Sprintf("the claim %q, to which the disk is to be copied, is gone", key.Name), nil
		}
		from := &corev1.PersistentVolumeClaim{}
		switch err := r.Live.Get(ctx, client.ObjectKey{Namespace: w.vmi.Namespace, Name: m.SourcePVCInfo.ClaimName}, from); {
		case apierrors.IsNotFound(err):
			return fmt.Sprintf("the claim %q, whose disk is to be copied, is gone", m.SourcePVCInfo.ClaimName), nil
		case err != nil:
			return "", fmt.Errorf("get claim %s: %w", m.SourcePVCInfo.ClaimName, err)
		}
		if gone, err := r.withoutVM(ctx, w.vmi); gone || err != nil {
			return "the VirtualMachine, to which the claim would belong, is gone", err
		}
		claim := claimLike(from, w.vmi, m, w.migration)
		if err := kit.SortedRefusal(r.Client.Create(ctx, claim)); err != nil {
			return "", fmt.Errorf("create claim %s: %w", claim.Name, err)
		}
		r.Events.Eventf(w.migration, claim, corev1.EventTypeNormal, "SuccessfulCreate", "Create", "Created claim %s, to which the disk of volume %s is copied", claim.Name, m.VolumeName)
	}
	return r.makeStateClaim(ctx, w)
}

// isOn says whether a claim has a disk of a VMI.
func isOn(vmi *v1.VirtualMachineInstance, claim string) bool {
	return slices.ContainsFunc(vmi.Spec.Volumes, func(v v1.Volume) bool {
		has := vmi.Claim(&v)
		return has != nil && has.Name == claim
	})
}

// withoutVM says whether the VM of a VMI is gone, or is being deleted. The garbage collector would delete a claim of such a VM.
func (r *Reconciler) withoutVM(ctx context.Context, vmi *v1.VirtualMachineInstance) (bool, error) {
	reference := owner.Reference(vmi, v1.VirtualMachineGroupVersionKind.GroupKind())
	if reference == nil {
		return true, nil
	}
	vm := &v1.VirtualMachine{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: vmi.Namespace, Name: reference.Name}, vm)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("get VirtualMachine %s: %w", reference.Name, err)
	}
	return vm.UID != reference.UID || vm.DeletionTimestamp != nil, nil
}

// claimLike is a claim of the same class, size and kind as another. It is the VM's, and goes with the VM. It is pure.
func claimLike(from *corev1.PersistentVolumeClaim, vmi *v1.VirtualMachineInstance, m *v1.StorageMigratedVolumeInfo, migration *v1.VirtualMachineInstanceMigration) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: m.DestinationPVCInfo.ClaimName,
		Labels: map[string]string{v1.CopyOfLabel: string(migration.UID)}, Annotations: map[string]string{v1.CopyOfAnnotation: specClaim(vmi, m.VolumeName)}}}
	claim.Spec = corev1.PersistentVolumeClaimSpec{AccessModes: from.Spec.AccessModes, VolumeMode: from.Spec.VolumeMode, StorageClassName: from.Spec.StorageClassName,
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *from.Spec.Resources.Requests.Storage()}}}
	if vm := owner.Reference(vmi, v1.VirtualMachineGroupVersionKind.GroupKind()); vm != nil {
		claim.OwnerReferences = []metav1.OwnerReference{*vm}
	}
	return claim
}

func specClaim(vmi *v1.VirtualMachineInstance, volume string) string {
	for i := range vmi.Spec.Volumes {
		if v := &vmi.Spec.Volumes[i]; v.Name == volume && v.Claim() != nil {
			return v.Claim().Name
		}
	}
	return ""
}

// removeClaims deletes the claims that a failed migration has made. It keeps a claim that has the disk: the guest may have ended
// on the target. A VMI's word counts for more than its VM's, which follows the VMI.
func (r *Reconciler) removeClaims(ctx context.Context, migration *v1.VirtualMachineInstanceMigration) error {
	if migration.Status.Phase != v1.MigrationFailed {
		return nil
	}
	var list corev1.PersistentVolumeClaimList
	if err := r.Live.List(ctx, &list, client.InNamespace(migration.Namespace), client.MatchingLabels{v1.CopyOfLabel: string(migration.UID)}); err != nil {
		return fmt.Errorf("list the claims of the migration: %w", err)
	}
	for i := range list.Items {
		claim := &list.Items[i]
		vm := owner.Reference(claim, v1.VirtualMachineGroupVersionKind.GroupKind())
		if vm == nil || claim.DeletionTimestamp != nil {
			continue // somebody has taken the claim away from its VM
		}
		if held, err := r.held(ctx, claim, vm); err != nil {
			return err
		} else if held {
			continue
		}
		if err := r.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete claim %s: %w", claim.Name, err)
		}
	}
	return r.removeStateClaim(ctx, migration)
}

// held says whether a claim has a disk of the VM that controls it. The VMI knows that if the disk is one of its own.
func (r *Reconciler) held(ctx context.Context, claim *corev1.PersistentVolumeClaim, reference *metav1.OwnerReference) (bool, error) {
	key := client.ObjectKey{Namespace: claim.Namespace, Name: reference.Name}
	vmi := &v1.VirtualMachineInstance{}
	err := r.Live.Get(ctx, key, vmi)
	if err == nil {
		if of := owner.Reference(vmi, v1.VirtualMachineGroupVersionKind.GroupKind()); of != nil && of.UID == reference.UID {
			for i := range vmi.Spec.Volumes {
				v := &vmi.Spec.Volumes[i]
				if named := v.Claim(); named != nil && named.Name == claim.Annotations[v1.CopyOfAnnotation] {
					return vmi.Claim(v).Name == claim.Name, nil
				}
			}
		}
	} else if !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("get VMI %s: %w", key.Name, err)
	}
	vm := &v1.VirtualMachine{}
	err = r.Live.Get(ctx, key, vm)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get VirtualMachine %s: %w", key.Name, err)
	}
	return vm.UID == reference.UID && vm.Status.Holds(claim.Name), nil
}

// freeClaims deletes a source pod that has ended, if it has claims that the guest has left. Kubernetes deletes no claim
// that a pod names, even if the pod has ended.
func (r *Reconciler) freeClaims(ctx context.Context, vmi *v1.VirtualMachineInstance, ended *corev1.Pod) error {
	pod := &corev1.Pod{} // the cache has no volumes
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(ended), pod); err != nil {
		return client.IgnoreNotFound(err)
	}
	has := map[string]bool{}
	if m := vmi.Status.MigrationState; m != nil {
		has[m.TargetPersistentStatePVCName] = true
	}
	for i := range vmi.Spec.Volumes {
		if claim := vmi.Claim(&vmi.Spec.Volumes[i]); claim != nil {
			has[claim.Name] = true
		}
	}
	left := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && !has[v.PersistentVolumeClaim.ClaimName]
	})
	if !left {
		return nil
	}
	if err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &ended.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete source pod, whose claims the guest has left: %w", err)
	}
	return nil
}
