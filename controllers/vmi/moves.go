package vmi

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/claimcopy"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// policyDelay is the time between two looks at the MigrationPolicies of a VMI whose claims they may let move. Nobody
// tells when a policy changes: see migration.Policies.
const policyDelay = 30 * time.Second

// noteMoves writes of each volume whether a migration copies its disk to another claim. It returns after how
// long to look again, because a policy may change. During a migration, and while the policies cannot be read,
// it stays as it was whether a disk is copied.
func (r *Reconciler) noteMoves(ctx context.Context, t *turn) (time.Duration, error) {
	vmi := t.vmi
	vm, err := r.machine(ctx, r.Client, vmi)
	if err != nil {
		return 0, err
	}
	r.observeUpdate(vmi, vm)
	if vmi.Migration() != nil || r.Policy == nil {
		return 0, nil
	}
	candidates := copyable(vmi, vm)
	permitted, again := false, time.Duration(0)
	if len(candidates) > 0 {
		policy, err := r.Policy(ctx, vmi)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "find out whether disks may be copied")
			return policyDelay, nil
		}
		permitted, again = policy.CopiesClaims(), policyDelay
	}
	for i := range vmi.Status.VolumeStatus {
		s := &vmi.Status.VolumeStatus[i]
		s.Moves = permitted && slices.Contains(candidates, s.Name)
	}
	return again, nil
}

// observeUpdate takes over from the VM which claims its user named for the guest's disks, and what the VM says of that.
func (r *Reconciler) observeUpdate(vmi *v1.VirtualMachineInstance, vm *v1.VirtualMachine) {
	for i := range vmi.Status.VolumeStatus {
		vmi.Status.VolumeStatus[i].MovesTo = named(vm, vmi.Status.VolumeStatus[i].Name)
	}
	if vm != nil {
		if c := vm.Status.Condition(v1.ConditionVolumesChange); c != nil {
			vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: c.Type, Status: c.Status, Reason: c.Reason,
				Message: c.Message}, r.now())
			return
		}
	}
	vmi.Status.RemoveCondition(v1.ConditionVolumesChange)
}

// named returns the claim that a user named for a volume, and that is ready to take its disk, or nil.
func named(vm *v1.VirtualMachine, volume string) *v1.PersistentVolumeClaimInfo {
	if vm == nil {
		return nil
	}
	for _, m := range vm.Status.PendingVolumes() {
		if m.VolumeName == volume && m.DestinationPVCInfo.IsReady() {
			return m.DestinationPVCInfo.DeepCopy()
		}
	}
	return nil
}

// copyable returns the volumes whose disks a migration may copy, if a policy permits it. They are those of the
// VM's own dataVolumeTemplates, so that the old claim may be deleted, on file systems that only one node can
// use. It is pure. vm may be nil.
func copyable(vmi *v1.VirtualMachineInstance, vm *v1.VirtualMachine) []string {
	if vm == nil {
		return nil
	}
	var out []string
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if vmi.CanCopy(v) && vm.DataVolumeTemplate(v.Claim().Name) != nil && !vmi.Status.ClaimInfo(v.Name).IsShared() {
			out = append(out, v.Name)
		}
	}
	return out
}

// machine returns the VM that controls a VMI, or nil. A VM's VMI has the VM's name.
func (r *Reconciler) machine(ctx context.Context, from client.Reader,
	vmi *v1.VirtualMachineInstance) (*v1.VirtualMachine, error) {
	reference := owner.Reference(vmi, v1.VirtualMachineGroupVersionKind.GroupKind())
	if reference == nil || reference.Name != vmi.Name {
		return nil, nil
	}
	vm := &v1.VirtualMachine{}
	err := from.Get(ctx, client.ObjectKeyFromObject(vmi), vm)
	switch {
	case apierrors.IsNotFound(err), err == nil && vm.UID != reference.UID:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get VirtualMachine %s: %w", reference.Name, err)
	}
	return vm, nil
}

// unnotedDelay is the time between two looks at a VM that has not taken over which claims have its disks.
const unnotedDelay = time.Second

// dismiss lets a deleted VMI go once its pods are gone. The VM must have in its status which claims have the disks
// of the VMI. Otherwise the next start would use other disks. The same holds for the claim with the guest's
// state.
func (r *Reconciler) dismiss(ctx context.Context, t *turn) (time.Duration, error) {
	vmi := t.vmi
	if t.pod != nil || holdUp(t.world) {
		return 0, nil
	}
	if hasClaims(vmi) {
		vm, err := r.machine(ctx, r.Live, vmi)
		if err != nil {
			return 0, err
		}
		cluster, err := r.cluster(ctx)
		if err != nil {
			return 0, err
		}
		if vm != nil && vm.DeletionTimestamp == nil && !vm.Knows(vmi, cluster.Rollout()) {
			return unnotedDelay, nil
		}
	}
	claims := claimcopy.Copier{Client: r.Client, Live: r.Live, Events: r.Events}
	if err := claims.HandOver(ctx, vmi); err != nil {
		return 0, err
	}
	return 0, r.release(ctx, vmi)
}

// hasClaims reports whether it was seen that a claim has one of the VMI's disks.
func hasClaims(vmi *v1.VirtualMachineInstance) bool {
	return slices.ContainsFunc(vmi.Status.VolumeStatus,
		func(s v1.VolumeStatus) bool { return s.PersistentVolumeClaimInfo != nil })
}

// updatesVolumes lets pass that a VM says something else of disks that are to be copied to other claims.
func updatesVolumes() predicate.Predicate {
	said := func(vm *v1.VirtualMachine) any {
		return []any{vm.Status.VolumeUpdateState, vm.Status.Condition(v1.ConditionVolumesChange)}
	}
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1.VirtualMachine)
			now, is := e.ObjectNew.(*v1.VirtualMachine)
			return ok && is && !equality.Semantic.DeepEqual(said(before), said(now))
		},
	}
}
