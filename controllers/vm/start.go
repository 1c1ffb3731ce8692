package vm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// This file makes a VM's VMI, deletes it, and waits until it is gone.

// begin makes the VMI of a VM whose choice is in its status.
func (r *Reconciler) begin(ctx context.Context, vm *v1.VirtualMachine,
	p *plan) (*v1.VirtualMachineInstance, *failure, error) {
	expanded, errs := expand(p.chosen, vm)
	if len(errs) > 0 {
		err := fmt.Errorf("%w: %w", errRefused, errs.ToAggregate())
		return nil, &failure{v1.ReasonInvalidSpec, errs.ToAggregate().Error()}, err
	}
	made, overridden, err := r.assemble(ctx, vm, expanded, p.paused)
	if errors.Is(err, kit.ErrPresets) {
		return nil, &failure{v1.ReasonPresetFailed, err.Error()}, err
	}
	if err != nil {
		return nil, nil, err
	}
	if lack := validation.LacksMemory(made); lack != nil {
		return nil, &failure{v1.ReasonInvalidSpec, lack.Error()}, fmt.Errorf("%w: %w", errRefused, lack)
	}
	if err = r.start(ctx, vm, made); err != nil {
		if errors.Is(err, errBehind) {
			return nil, nil, err
		}
		return nil, &failure{v1.ReasonFailedCreate, err.Error()}, err
	}
	kit.AnnounceOverridden(r.Events, made, vm, overridden)
	return made, nil, nil
}

// assemble returns the VMI of a start, made from the VM with its instancetype and preference. The parts
// are those of the VM as the user wrote it: neither an instancetype nor a preset changes that VM.
func (r *Reconciler) assemble(ctx context.Context, vm, expanded *v1.VirtualMachine,
	paused bool) (made *v1.VirtualMachineInstance, overridden []string, err error) {
	config, err := r.Cluster(ctx)
	if err != nil {
		return nil, nil, err
	}
	made = expanded.Draft(paused)
	made.Annotations[v1.TemplatePartsAnnotation] = vm.Parts().String()
	r.Follow.Note(templateMetadata(vm), made)
	if overridden, err = r.Presets.Apply(ctx, made); err != nil {
		return nil, nil, err
	}
	expanded.Identify(made, config)
	return made, overridden, nil
}

// validate returns what is wrong with a VM. A template to which an instancetype or a preference belongs is
// incomplete by itself: begin checks the expanded VM at the start.
func validate(vm *v1.VirtualMachine) field.ErrorList {
	if vm.Spec.Instancetype != nil || vm.Spec.Preference != nil {
		return validation.ValidateVirtualMachineSpec(vm)
	}
	return validation.ValidateVirtualMachine(vm)
}

// start creates the VMI.
func (r *Reconciler) start(ctx context.Context, vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) error {
	// A guest must not start because of an outdated run strategy, or an outdated status of its
	// last run.
	live := &v1.VirtualMachine{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(vm), live); err != nil {
		return fmt.Errorf("get VirtualMachine: %w", err)
	}
	if live.UID != vm.UID || live.ResourceVersion != vm.ResourceVersion {
		return errBehind
	}
	err := kit.SortedRefusal(r.Client.Create(ctx, vmi))
	if apierrors.IsAlreadyExists(err) {
		there := &v1.VirtualMachineInstance{}
		err := r.Live.Get(ctx, client.ObjectKeyFromObject(vmi), there)
		switch {
		case apierrors.IsNotFound(err), err == nil && controls(vm, there):
			return errBehind
		case err != nil:
			return fmt.Errorf("get VirtualMachineInstance: %w", err)
		}
		return fmt.Errorf("create VirtualMachineInstance %s: %w", vmi.Name, errTaken)
	}
	if apierrors.IsConflict(err) { // of a quota that others use at the same time
		return errBehind
	}
	if err != nil {
		return fmt.Errorf("create VirtualMachineInstance %s: %w", vmi.Name, err)
	}
	r.Events.Eventf(vm, vmi, corev1.EventTypeNormal, "SuccessfulCreate", "Start",
		"Started: created VirtualMachineInstance %s", vmi.Name)
	return nil
}

// stop deletes the VMI, unless it is being deleted already. The guest has its grace period. A VMI that the VM
// no longer controls stays. When a VM is deleted without its VMI, the garbage collector may have removed the
// owner reference and the finalizer "orphan" before this controller looked.
func (r *Reconciler) stop(ctx context.Context, vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) error {
	live := &v1.VirtualMachineInstance{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(vmi), live)
	switch {
	case apierrors.IsNotFound(err), err == nil &&
		(live.UID != vmi.UID || live.DeletionTimestamp != nil || !controls(vm, live)):
		return errBehind
	case err != nil:
		return fmt.Errorf("get VirtualMachineInstance: %w", err)
	}
	err = r.Client.Delete(ctx, live, client.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return errBehind
	case err != nil:
		return fmt.Errorf("delete VirtualMachineInstance %s: %w", vmi.Name, err)
	}
	r.Events.Eventf(vm, vmi, corev1.EventTypeNormal, "SuccessfulDelete", "Stop",
		"Stopped: deleted VirtualMachineInstance %s (%s)", vmi.Name, vmi.UID)
	return nil
}

// gone returns nil if a deleted VM has no VMI any more, and errBehind if it still has one. A VM that is deleted
// without its VMI (finalizer "orphan") need not wait for the VMI's end.
func (r *Reconciler) gone(ctx context.Context, vm *v1.VirtualMachine) error {
	if slices.Contains(vm.Finalizers, metav1.FinalizerOrphanDependents) {
		return nil
	}
	live := &v1.VirtualMachineInstance{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(vm), live)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get VirtualMachineInstance: %w", err)
	case controls(vm, live):
		return errBehind
	}
	return nil
}
