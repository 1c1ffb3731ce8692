package vmi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// admit ends an invalid VMI. Of a valid VMI it persists presets, defaults and the finalizer in a single write. When
// there is nothing to persist any more, the VMI becomes Pending, and the steps that follow are taken.
func (r *Reconciler) admit(ctx context.Context, t *turn) (time.Duration, error) {
	vmi := t.vmi
	cluster, err := r.cluster(ctx)
	if err != nil {
		return 0, err
	}
	defaulted := vmi.DeepCopy()
	var overridden []string
	if vmi.Status.Phase == "" {
		// virt-api, or the controller that made the VMI, has applied the presets and added the
		// finalizer, unless the API server has not asked virt-api.
		if !controllerutil.ContainsFinalizer(vmi, v1.VMIFinalizer) {
			if overridden, err = r.Presets.Apply(ctx, defaulted); kit.PresetsUnread(err) {
				vmi.Status.Complain(v1.ReasonPresetFailed, err.Error(), r.now())
				return 0, err
			} else if errors.Is(err, kit.ErrPresets) {
				r.refuse(vmi, v1.ReasonPresetFailed, err.Error())
				return 0, errSkipRest
			} else if err != nil {
				return 0, err
			}
		}
		v1.ApplyClusterDefaults(defaulted, cluster)
	}
	v1.Default(defaulted)
	errs := validation.ValidateVirtualMachineInstance(defaulted)
	if vmi.Status.Phase == "" {
		errs = append(errs, validation.ValidateForCluster(defaulted, cluster)...)
	}
	if len(errs) > 0 {
		r.refuse(vmi, v1.ReasonInvalidSpec, errs.ToAggregate().Error())
		return 0, errSkipRest
	}
	// Once the VMI has a phase, its spec cannot change any more.
	if vmi.Status.Phase != "" {
		return 0, nil
	}
	controllerutil.AddFinalizer(defaulted, v1.VMIFinalizer)
	if equality.Semantic.DeepEqual(defaulted.Spec, vmi.Spec) && slices.Equal(defaulted.Finalizers, vmi.Finalizers) {
		vmi.Status.SetPhase(v1.Pending, r.now())
		return 0, nil
	}
	err = kit.SortedRefusal(r.persist(ctx, vmi, defaulted))
	switch {
	case err == nil:
		kit.AnnounceOverridden(r.Events, vmi, nil, overridden)
		return 0, errSkipRest // its event brings us back
	case apierrors.IsConflict(err):
		return 0, err
	}
	vmi.Status.Complain(v1.ReasonFailedUpdate, err.Error(), r.now())
	return 0, fmt.Errorf("persist defaults: %w", err)
}

// refuse ends a VMI that must not start.
func (r *Reconciler) refuse(vmi *v1.VirtualMachineInstance, reason, message string) {
	vmi.Status.Complain(reason, message, r.now())
	finish(&vmi.Status, end{v1.Failed, reason, message}, r.now())
}
