package pool

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/group"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// carryOut carries out a plan, until a step fails. A VirtualMachine that another writer has
// changed is left for the next reconcile, and the rest goes on; that conflict is returned at
// the end.
func (r *Reconciler) carryOut(ctx context.Context, pool *v1beta1.VirtualMachinePool, p plan, revision string) *group.Failure {
	var conflict *group.Failure
	for _, step := range []struct {
		vms    []*v1.VirtualMachine
		do     func(*v1.VirtualMachine) error
		reason string
		verb   string
	}{
		{p.delete, func(vm *v1.VirtualMachine) error { return r.delete(ctx, pool, vm) }, v1.ReasonFailedScaleIn, "delete"},
		{p.renew, func(vm *v1.VirtualMachine) error { return r.renew(ctx, pool, vm, revision) }, v1.ReasonFailedUpdate, "update"},
		{p.restart, func(vm *v1.VirtualMachine) error { return r.restart(ctx, pool, vm) }, v1.ReasonFailedUpdate, "restart"},
	} {
		for _, vm := range step.vms {
			err := step.do(vm)
			failed := &group.Failure{Reason: step.reason, Err: fmt.Errorf("%s VirtualMachine %s: %w", step.verb, vm.Name, err)}
			switch {
			case apierrors.IsConflict(err):
				conflict = failed
			case err != nil:
				return failed
			}
		}
	}
	if failed := r.create(ctx, pool, p.create, revision); failed != nil {
		return failed
	}
	return conflict
}

func (r *Reconciler) create(ctx context.Context, pool *v1beta1.VirtualMachinePool, indices []int, revision string) *group.Failure {
	for _, index := range indices {
		vm := machine(pool, index, revision)
		err := kit.SortedRefusal(r.Client.Create(ctx, vm))
		switch {
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return nil
		case err != nil:
			return &group.Failure{Reason: v1.ReasonFailedScaleOut, Err: fmt.Errorf("create VirtualMachine %s: %w", vm.Name, err)}
		}
		r.Events.Eventf(pool, vm, corev1.EventTypeNormal, "SuccessfulCreate", "Create", "Created VirtualMachine %s", vm.Name)
	}
	return nil
}

// delete deletes a VirtualMachine only at the version that was read: one that has left the
// pool meanwhile stays.
func (r *Reconciler) delete(ctx context.Context, pool *v1beta1.VirtualMachinePool, vm *v1.VirtualMachine) error {
	err := r.Client.Delete(ctx, vm, client.Preconditions{UID: &vm.UID, ResourceVersion: &vm.ResourceVersion})
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	r.Events.Eventf(pool, vm, corev1.EventTypeNormal, "SuccessfulDelete", "Delete", "Deleted VirtualMachine %s", vm.Name)
	return nil
}

func (r *Reconciler) renew(ctx context.Context, pool *v1beta1.VirtualMachinePool, vm *v1.VirtualMachine, revision string) error {
	index, ok := indexOf(pool, vm.Name)
	if !ok {
		return nil // the plan has only names with an index
	}
	renewed := vm.DeepCopy()
	renew(pool, renewed, index, revision)
	if err := r.Client.Patch(ctx, renewed, client.MergeFromWithOptions(vm, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(kit.SortedRefusal(err))
	}
	r.Events.Eventf(pool, vm, corev1.EventTypeNormal, "SuccessfulUpdate", "Update", "Updated VirtualMachine %s", vm.Name)
	return nil
}

// restart makes the same requests as virtctl restart. The Stop names the VMI's UID, so that it
// ends no later guest.
func (r *Reconciler) restart(ctx context.Context, pool *v1beta1.VirtualMachinePool, vm *v1.VirtualMachine) error {
	vmi := &v1.VirtualMachineInstance{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(vm), vmi); err != nil {
		return client.IgnoreNotFound(err)
	}
	_, renamed := vm.VolumeUpdates(vmi, v1.RolloutStage)
	current := vm.HasParts(vmi) && len(renamed) == 0
	if vmi.DeletionTimestamp != nil || !owner.Controls(v1.VirtualMachineGroupVersionKind.GroupKind(), vm, vmi) || current {
		return nil // the VM's status is behind
	}
	if len(vm.Status.PendingVolumes()) > 0 {
		return nil // a migration copies disks, without which the guest could not start
	}
	asked := vm.DeepCopy()
	asked.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StopRequest, UID: &vmi.UID}, {Action: v1.StartRequest}}
	if err := r.Client.Status().Patch(ctx, asked, client.MergeFromWithOptions(vm, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.Events.Eventf(pool, vm, corev1.EventTypeNormal, "SuccessfulRestart", "Restart", "Restarting VirtualMachine %s: its guest is of an older template", vm.Name)
	return nil
}
