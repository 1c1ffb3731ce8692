package vmi

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// remove deletes the launcher pod. The deletion asks the guest to shut down, and works also
// while virt-handler is down. When the pod has ended, its status says how the VM ended.
func (r *Reconciler) remove(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) error {
	if pod == nil {
		if !vmi.IsFinal() && vmi.Status.Phase != "" {
			finish(&vmi.Status, r.lastWord(vmi, end{v1.Succeeded, v1.ReasonPodDeleted, "the launcher pod is gone"}), r.now())
		}
		return nil
	}
	if !vmi.IsFinal() {
		observe(&vmi.Status, pod, r.now())
	}
	if pod.DeletionTimestamp != nil {
		return nil
	}
	if err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); err != nil {
		return fmt.Errorf("delete launcher pod: %w", err)
	}
	r.Events.Eventf(vmi, pod, corev1.EventTypeNormal, "SuccessfulDelete", "Delete", "Deleted virtual machine pod %s",
		pod.Name)
	return nil
}

// release removes the finalizer of a deleted VMI whose pod is gone.
func (r *Reconciler) release(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	r.ends.forget(vmi.UID)
	freed := vmi.DeepCopy()
	if !controllerutil.RemoveFinalizer(freed, v1.VMIFinalizer) {
		return nil
	}
	patch := client.MergeFromWithOptions(vmi, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, freed, patch); err != nil {
		return fmt.Errorf("remove finalizer: %w", err)
	}
	return nil
}
