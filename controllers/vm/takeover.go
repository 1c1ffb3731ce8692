package vm

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// takeOver gives a running VMI what its guest takes over of the VM's changes: one write of the spec and of the parts
// that the guest has. virt-handler carries it out.
func (r *Reconciler) takeOver(ctx context.Context, vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance,
	live v1.Live) error {
	expanded, unexpanded := vm, error(nil)
	if live.NeedsExpansion() {
		if expanded, unexpanded = r.expanded(ctx, vm); unexpanded != nil {
			expanded, live = vm, live.WithoutExpanded()
		}
	}
	if len(live.Taken) == 0 {
		return unexpanded
	}
	next := live.Follow(vm, expanded, vmi)
	// The UID and the version: another VMI of the name, or one that has changed since, is looked at anew.
	err := kit.SortedRefusal(r.Client.Patch(ctx, next,
		client.MergeFromWithOptions(vmi, client.MergeFromWithOptimisticLock{})))
	if err != nil {
		err = fmt.Errorf("write the spec of VirtualMachineInstance %s: %w", vmi.Name, err)
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			r.Events.Eventf(vm, vmi, corev1.EventTypeWarning, v1.ReasonFailedUpdate, "TakeOver", "%s", err)
		}
		return err
	}
	if equality.Semantic.DeepEqual(next.Spec, vmi.Spec) {
		return unexpanded // the template says in other words what the guest has
	}
	for _, told := range live.Told(next) {
		r.Events.Eventf(vm, vmi, corev1.EventTypeNormal, "SuccessfulUpdate", "TakeOver", "%s", bounded(told))
	}
	return unexpanded
}

// expanded returns the VM with its instancetype and its preference filled in.
func (r *Reconciler) expanded(ctx context.Context, vm *v1.VirtualMachine) (*v1.VirtualMachine, error) {
	chosen, err := r.choose(ctx, vm)
	if err != nil {
		return nil, err
	}
	expanded, errs := expand(chosen, vm)
	if len(errs) > 0 {
		return nil, fmt.Errorf("%w: %w", errRefused, errs.ToAggregate())
	}
	return expanded, nil
}
