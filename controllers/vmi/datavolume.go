package vmi

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// errFilling means that a DataVolume is still filling a disk.
var errFilling = errors.New("a disk is being filled")

// filler is the DataVolume that owns a claim and fills its disk, or nil.
func filler(claim *corev1.PersistentVolumeClaim) *metav1.OwnerReference {
	return owner.Reference(claim, v1.DataVolumeGroupVersionKind.GroupKind())
}

// fills is the progress of a DataVolume.
type fills struct {
	// done means that the claim's disk may be used.
	done bool
	// failed means that the claim's disk will not be filled without help.
	failed  bool
	message string
}

// progress returns the progress of a DataVolume. A nil volume does not exist. It is pure.
func progress(name string, volume *unstructured.Unstructured) fills {
	if volume == nil {
		return fills{message: fmt.Sprintf("DataVolume %s, which owns the claim, does not exist, and nobody can say whether the claim is filled", name)}
	}
	phase, _, _ := unstructured.NestedString(volume.Object, "status", "phase")
	percent, _, _ := unstructured.NestedString(volume.Object, "status", "progress")
	switch phase {
	// PendingPopulation: the volume is filled for its first pod, whose start waits for that.
	case "Succeeded", "PendingPopulation":
		return fills{done: true}
	case "Failed":
		return fills{failed: true, message: fmt.Sprintf("DataVolume %s failed", name)}
	case "WaitForFirstConsumer":
		return fills{message: fmt.Sprintf("DataVolume %s waits for a first pod, and no VM is one before it is filled: give it the annotation cdi.kubevirt.io/storage.bind.immediate.requested", name)}
	case "":
		phase = "new"
	}
	if percent != "" {
		phase += ", " + percent
	}
	return fills{message: fmt.Sprintf("DataVolume %s is %s", name, phase)}
}

// filled says whether the disks of all the VMI's claims may be used. If not, it writes into
// the status what the VMI waits for. A claim that CDI fills exists before its content does. The
// cluster may get or lose CDI's kinds at any time, so no DataVolume is watched: a VMI that waits
// for a DataVolume asks again.
func (r *Reconciler) filled(ctx context.Context, vmi *v1.VirtualMachineInstance) (bool, error) {
	for _, v := range vmi.Spec.Volumes {
		source := v.Claim()
		if source == nil {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		if err := r.Client.Get(ctx, client.ObjectKey{Namespace: vmi.Namespace, Name: source.Name}, claim); err != nil {
			return false, fmt.Errorf("get PersistentVolumeClaim %s: %w", source.Name, err)
		}
		owner := filler(claim)
		if owner == nil {
			continue
		}
		volume, err := r.dataVolume(ctx, vmi.Namespace, owner)
		if err != nil {
			return false, err
		}
		if p := progress(owner.Name, volume); !p.done {
			r.waitForDisk(vmi, p)
			return false, nil
		}
	}
	vmi.Status.RemoveCondition(v1.ConditionProvisioning)
	return true, nil
}

func (r *Reconciler) dataVolume(ctx context.Context, namespace string, owner *metav1.OwnerReference) (*unstructured.Unstructured, error) {
	volume := &unstructured.Unstructured{}
	volume.SetGroupVersionKind(v1.DataVolumeGroupVersionKind)
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: owner.Name}, volume)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err), err == nil && volume.GetUID() != owner.UID:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get DataVolume %s: %w", owner.Name, err)
	}
	return volume, nil
}

func (r *Reconciler) waitForDisk(vmi *v1.VirtualMachineInstance, p fills) {
	setReady(&vmi.Status, metav1.ConditionFalse, v1.ReasonPodNotExists, "the launcher pod is not created yet", r.now())
	if p.failed {
		vmi.Status.RemoveCondition(v1.ConditionProvisioning)
		r.unsynchronized(vmi, v1.ReasonDataVolumeFailed, p.message)
		return
	}
	if s := vmi.Status.Condition(v1.ConditionSynchronized); s != nil && (s.Reason == v1.ReasonDataVolumeFailed || s.Reason == v1.ReasonPvcNotFound) {
		vmi.Status.RemoveCondition(v1.ConditionSynchronized)
	}
	vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionProvisioning, Status: metav1.ConditionTrue,
		Reason: v1.ReasonDataVolumeNotReady, Message: p.message}, r.now())
}
