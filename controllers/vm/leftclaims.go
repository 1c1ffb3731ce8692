package vm

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// This file records which claim holds each disk after a migration has copied it, and deletes the claims left behind.
// Package claimcopy makes the new claims.

// moved returns what the status says of moved claims, given the VM's VMI, or nil. lost are the claims that are
// gone: their disks begin anew. It is pure.
func moved(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, lost []string) []v1.MovedClaim {
	var out []v1.MovedClaim
	for _, m := range vm.Status.MovedClaims {
		if !slices.Contains(lost, m.HeldBy) {
			out = append(out, m)
		}
	}
	if vmi == nil {
		return out
	}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		named, info := v.Claim(), vmi.Status.ClaimInfo(v.Name)
		if named != nil && !named.Overlay && info != nil && info.ClaimName != "" && vm.KeepsHeld(vmi, v, info.ClaimName) {
			out = held(out, named.Name, info.ClaimName)
		}
	}
	return slices.DeleteFunc(out, func(m v1.MovedClaim) bool { return !matters(vm, vmi, &m) })
}

// matters reports whether it still matters which claim has the disk of a claim. It does not once a migration
// has copied the disk on, to a claim that a user named and that the VMI's spec names.
func matters(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, m *v1.MovedClaim) bool {
	return !slices.ContainsFunc(vm.Status.PendingVolumes(), func(p v1.StorageMigratedVolumeInfo) bool {
		v := vmi.Spec.Volume(p.VolumeName)
		return p.From() == m.HeldBy && v != nil && v.Claim() != nil && v.Claim().Name == p.To()
	})
}

// movedNow returns what moved returns, but takes nothing back because of a VMI that the cache has from before a
// migration. Another virt-controller may have noted more than this one has seen.
func (r *Reconciler) movedNow(ctx context.Context, vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance,
	lost []string) ([]v1.MovedClaim, error) {
	list := moved(vm, vmi, lost)
	changed := slices.ContainsFunc(vm.Status.MovedClaims, func(m v1.MovedClaim) bool {
		return !slices.Contains(lost, m.HeldBy) && !slices.Contains(list, m)
	})
	if !changed {
		return list, nil
	}
	live, err := own(ctx, r.Live, vm)
	if err != nil {
		return nil, err
	}
	return moved(vm, live, lost), nil
}

// held notes in the list which claim has the disk of a claim of the template, and returns the list. A disk on
// its own claim needs no note.
func held(list []v1.MovedClaim, named, has string) []v1.MovedClaim {
	i := slices.IndexFunc(list, func(m v1.MovedClaim) bool { return m.ClaimName == named })
	switch {
	case i < 0 && has == named:
	case i < 0:
		list = append(list, v1.MovedClaim{ClaimName: named, HeldBy: has})
	case has == named: // the guest did not run on the target
		list = slices.Delete(list, i, i+1)
	default:
		list[i].HeldBy = has
	}
	return list
}

// left returns the disks that have left claims, which are still to be deleted. A migration counts only if the guest
// ran on the target. It is pure. vmi may be nil.
func left(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) []*v1.MovedClaim {
	if vm.DeletionTimestamp != nil || vmi == nil {
		return nil
	}
	last := vmi.Status.MigrationState
	if last == nil || !last.Completed || last.Failed || last.Decision != v1.DecisionTarget {
		return nil
	}
	var out []*v1.MovedClaim
	for i := range vm.Status.MovedClaims {
		if m := &vm.Status.MovedClaims[i]; m.CleanedUp != last.MigrationUID && hasDisk(vmi, m) {
			out = append(out, m)
		}
	}
	return out
}

// hasDisk reports whether the guest of a VMI has its disk on the claim that the VM's status names.
func hasDisk(vmi *v1.VirtualMachineInstance, m *v1.MovedClaim) bool {
	return slices.ContainsFunc(vmi.Spec.Volumes, func(v v1.Volume) bool {
		named, info := v.Claim(), vmi.Status.ClaimInfo(v.Name)
		return named != nil && !named.Overlay && named.Name == m.ClaimName && info != nil && info.ClaimName == m.HeldBy
	})
}

// dropLeft deletes the claims that the VM's disks have left. Before it does, it looks past the cache whether the VM
// and its VMI are as they seem.
func (r *Reconciler) dropLeft(ctx context.Context, vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) error {
	if len(left(vm, vmi)) == 0 {
		return nil
	}
	// The copies first: a copy of a migration that begins after this is not among them.
	copies, err := r.copies(ctx, vm)
	if err != nil {
		return err
	}
	live := &v1.VirtualMachine{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(vm), live); err != nil {
		return fmt.Errorf("get VirtualMachine: %w", err)
	}
	vmi, err = own(ctx, r.Live, vm)
	if err != nil || live.UID != vm.UID || live.ResourceVersion != vm.ResourceVersion {
		return err
	}
	for _, m := range left(live, vmi) {
		if !sound(copies, m) {
			continue
		}
		if err := r.dropTemplate(ctx, vm, m.ClaimName); err != nil {
			return err
		}
		for i := range copies {
			c := &copies[i]
			if v1.CopiedDisk(c) == m.ClaimName && vmi.VolumeOn(c.Name) == nil && c.DeletionTimestamp == nil {
				if err := r.drop(ctx, vm, c, c.UID); err != nil {
					return err
				}
			}
		}
		m.CleanedUp = vmi.Status.MigrationState.MigrationUID
	}
	return r.writeStatus(ctx, vm, live.Status)
}

// copies returns the claims that migrations have made for the VM's disks, as the API server has them.
func (r *Reconciler) copies(ctx context.Context, vm *v1.VirtualMachine) ([]corev1.PersistentVolumeClaim, error) {
	var list corev1.PersistentVolumeClaimList
	if err := r.Live.List(ctx, &list, client.InNamespace(vm.Namespace), client.HasLabels{v1.CopyOfLabel}); err != nil {
		return nil, fmt.Errorf("list the claims to which migrations have copied disks: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(c corev1.PersistentVolumeClaim) bool {
		return v1.CopiedDisk(&c) == "" || !owner.Controls(v1.VirtualMachineGroupVersionKind.GroupKind(), vm, &c)
	}), nil
}

// sound reports whether the claim that has a disk is there to stay, and is what a migration made.
func sound(copies []corev1.PersistentVolumeClaim, m *v1.MovedClaim) bool {
	return slices.ContainsFunc(copies, func(c corev1.PersistentVolumeClaim) bool {
		return c.Name == m.HeldBy && c.DeletionTimestamp == nil && v1.CopiedDisk(&c) == m.ClaimName
	})
}

// dropTemplate deletes the DataVolume of the VM's template, whose claim goes with it. If there is no
// DataVolume, it deletes the claim. It deletes only what is the VM's.
func (r *Reconciler) dropTemplate(ctx context.Context, vm *v1.VirtualMachine, name string) error {
	key := client.ObjectKey{Namespace: vm.Namespace, Name: name}
	state, err := datavolume.Look(ctx, r.Live, key)
	if err != nil {
		return fmt.Errorf("look at the disk %s, which a migration has copied: %w", name, err)
	}
	there, object := state.Volume, client.Object(datavolume.Named(key))
	if there == nil {
		there, object = state.Claim,
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	}
	if there == nil || there.DeletionTimestamp != nil ||
		!owner.Controls(v1.VirtualMachineGroupVersionKind.GroupKind(), vm, there) {
		return nil
	}
	return r.drop(ctx, vm, object, there.UID)
}

// drop deletes an object that a disk has left. A claim that a pod still uses goes when the pod has ended.
func (r *Reconciler) drop(ctx context.Context, vm *v1.VirtualMachine, object client.Object, uid types.UID) error {
	switch err := r.Client.Delete(ctx, object, client.Preconditions{UID: &uid}); {
	case apierrors.IsConflict(err): // no event of it brings the VM back: see kit.IgnoreConflict
		return fmt.Errorf("delete %s, whose disk a migration has copied: it was made anew: %s", object.GetName(), err)
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("delete %s, whose disk a migration has copied: %w", object.GetName(), err)
	}
	r.Events.Eventf(vm, nil, corev1.EventTypeNormal, "SuccessfulDelete", "Migrate",
		"Deleted %s: a migration has copied its disk to another claim", object.GetName())
	return nil
}

// elsewhere are the disks of the VM's templates that are on other claims.
type elsewhere struct {
	// kept are the names of the DataVolumes that are not needed.
	kept map[string]bool
	// lost are the claims that are gone, leaving those that are being deleted, and older those that are gone while
	// an earlier copy of the disk is there.
	lost, leaving []string
	older         []string
}

// findElsewhere looks at the claims to which migrations have copied the VM's disks. A claim that is gone is
// lost only when the VM is to start. Until then a backup may bring the claim back.
func (r *Reconciler) findElsewhere(ctx context.Context, vm *v1.VirtualMachine, starts bool) (elsewhere, error) {
	found := elsewhere{kept: map[string]bool{}}
	for i := range vm.Spec.DataVolumeTemplates {
		name := vm.Spec.DataVolumeTemplates[i].ObjectMeta.Name
		by := vm.Status.HeldBy(name)
		if by == name {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		err := r.Live.Get(ctx, client.ObjectKey{Namespace: vm.Namespace, Name: by}, claim)
		switch {
		case apierrors.IsNotFound(err) && starts:
			earlier, err := r.earlierCopy(ctx, vm, name)
			if err != nil {
				return found, err
			}
			if earlier == "" {
				found.lost = append(found.lost, by)
				continue
			}
			found.older = append(found.older, fmt.Sprintf("claim %s, to which a migration copied a disk, is gone, and claim %s has an earlier copy of the disk: save what you need of the copy and delete it, and the disk is made anew from its template", by, earlier))
		case err != nil && !apierrors.IsNotFound(err):
			return found, fmt.Errorf("%w: get claim %s: %w", errUnread, by, err)
		case err == nil && claim.DeletionTimestamp != nil:
			found.leaving = append(found.leaving, by)
		}
		found.kept[name] = true
	}
	return found, nil
}

// earlierCopy returns the name of a claim to which a migration copied a disk before, or "".
func (r *Reconciler) earlierCopy(ctx context.Context, vm *v1.VirtualMachine, name string) (string, error) {
	claims, err := r.copies(ctx, vm)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errUnread, err)
	}
	for i := range claims {
		if v1.CopiedDisk(&claims[i]) == name {
			return claims[i].Name, nil
		}
	}
	return "", nil
}

// waits returns what a VM's start waits for.
func (e elsewhere) waits() []string {
	out := slices.Clone(e.older)
	for _, claim := range e.lost {
		out = append(out,
			fmt.Sprintf("claim %s, to which a migration copied a disk, is gone: the VM starts with what there is of its template", claim))
	}
	for _, claim := range e.leaving {
		out = append(out, fmt.Sprintf("claim %s, to which a migration copied a disk, is being deleted", claim))
	}
	return out
}
