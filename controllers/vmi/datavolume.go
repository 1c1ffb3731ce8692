package vmi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// filler returns the DataVolume that owns a claim and fills its disk, or nil.
func filler(claim *corev1.PersistentVolumeClaim) *metav1.OwnerReference {
	return owner.Reference(claim, v1.DataVolumeGroupVersionKind.GroupKind())
}

// waitForDisks keeps a VMI from its pod while one of its disks is being filled, and writes into the status what the
// VMI waits for. A claim that CDI fills exists before its content does. The cluster may get or lose CDI's
// kinds at any time, so no DataVolume is watched. A VMI that waits for a DataVolume asks again.
func (r *Reconciler) waitForDisks(ctx context.Context, t *turn) (time.Duration, error) {
	vmi := t.vmi
	fillings, err := r.fillings(ctx, vmi)
	if err != nil {
		return 0, err
	}
	waits := next(fillings)
	if slices.ContainsFunc(fillings, func(p datavolume.Progress) bool { return p.Unbound }) {
		var step string
		if step, err = r.consume(ctx, vmi); waits.Unbound {
			waits.Message += ": " + step
		}
	} else if vmi.Status.Condition(v1.ConditionProvisioning) != nil { // else it has had no consumer
		vmi.Status.RemoveCondition(v1.ConditionPodScheduled) // of the consumer
		err = r.consumed(ctx, vmi)
		if waits != nil {
			permitted(&vmi.Status)
		}
	}
	if waits == nil {
		return 0, err // Provisioning stays until the launcher pod is made: see wasRejected
	}
	waited := r.noteFilling(vmi, *waits)
	if err != nil {
		return 0, err
	}
	return datavolume.Pause(waited), errSkipRest
}

// fillings returns the progress of the DataVolumes that own the VMI's claims, up to the first that has failed.
// The others are not asked about then.
func (r *Reconciler) fillings(ctx context.Context, vmi *v1.VirtualMachineInstance) ([]datavolume.Progress, error) {
	var all []datavolume.Progress
	seen := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		source := vmi.Claim(&vmi.Spec.Volumes[i])
		if source == nil || seen[source.Name] {
			continue
		}
		seen[source.Name] = true
		claim := &corev1.PersistentVolumeClaim{}
		if err := r.Client.Get(ctx, client.ObjectKey{Namespace: vmi.Namespace, Name: source.Name}, claim); err != nil {
			return nil, fmt.Errorf("get PersistentVolumeClaim %s: %w", source.Name, err)
		}
		owner := filler(claim)
		if owner == nil {
			continue
		}
		volume, err := r.dataVolume(ctx, vmi.Namespace, owner)
		if err != nil {
			return nil, err
		}
		p := datavolume.Of(owner.Name, volume)
		if all = append(all, p); p.Failed {
			break
		}
	}
	return all, nil
}

// next returns what a VMI waits for, or nil if all disks are filled. A failure comes first, then a claim that
// has to be bound.
func next(fillings []datavolume.Progress) *datavolume.Progress {
	var first *datavolume.Progress
	for i := range fillings {
		p := &fillings[i]
		switch {
		case p.Done:
		case first == nil, p.Failed && !first.Failed, p.Unbound && !first.Failed && !first.Unbound:
			first = p
		}
	}
	return first
}

// dataVolume reads the DataVolume that owns a claim, or returns nil if it is not there any more.
func (r *Reconciler) dataVolume(ctx context.Context, namespace string,
	owner *metav1.OwnerReference) (*unstructured.Unstructured, error) {
	volume, err := datavolume.Get(ctx, r.Live, client.ObjectKey{Namespace: namespace, Name: owner.Name})
	if errors.Is(err, datavolume.ErrNoCDI) || volume != nil && volume.GetUID() != owner.UID {
		return nil, nil
	}
	return volume, err
}

// noteFilling writes into the status which disk is being filled, and returns how long the VMI has waited for disks.
func (r *Reconciler) noteFilling(vmi *v1.VirtualMachineInstance, p datavolume.Progress) time.Duration {
	r.notCreated(vmi)
	if p.Failed {
		vmi.Status.Complain(v1.ReasonDataVolumeFailed, p.Message, r.now())
	} else {
		vmi.Status.EndComplaint(v1.OwnerDisks)
	}
	vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionProvisioning,
		Status: metav1.ConditionTrue,
		Reason: v1.ReasonDataVolumeNotReady, Message: p.Message}, r.now())
	return r.Clock.Since(vmi.Status.Condition(v1.ConditionProvisioning).LastTransitionTime.Time)
}
