package vmi

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// create makes the launcher pod of a VMI that has none, and returns the pod. A VMI that had a
// pod, and lost it other than by a rejection, ends.
func (r *Reconciler) create(ctx context.Context, vmi *v1.VirtualMachineInstance) (*corev1.Pod, error) {
	cluster, err := r.cluster(ctx)
	if err != nil {
		return nil, err
	}
	status := &vmi.Status
	if reported(status) && !wasRejected(status) {
		finish(status, r.lastWord(vmi, end{v1.Failed, v1.ReasonPodDeleted, "the launcher pod was deleted"}), r.now())
		return nil, nil
	}
	begin(status, r.now())
	missing, err := r.observeVolumes(ctx, vmi)
	if err != nil {
		return nil, err
	}
	if missing == "" {
		if err := r.keepState(ctx, vmi, cluster); err != nil {
			return nil, err
		}
	}
	hinted, err := r.hint(ctx, vmi)
	if err != nil {
		return nil, err
	}
	observeBindings(vmi, cluster)
	observeMigratable(vmi, r.now())
	if missing != "" {
		setReady(status, metav1.ConditionFalse, v1.ReasonPodNotExists, "the launcher pod is not created yet", r.now())
		vmi.Status.Complain(v1.ReasonPvcNotFound,
			fmt.Sprintf("%s %s/%s does not exist, waiting for it to appear", claimKind(vmi, missing), vmi.Namespace, missing),
			r.now())
		return nil, nil
	}
	if filled, err := r.filled(ctx, vmi); err != nil {
		return nil, err
	} else if !filled {
		return nil, errFilling
	}
	if hinted {
		// The status must have the hint before a pod selects nodes by it: the hint cannot be found again. The event
		// of the status write brings us back.
		return nil, nil
	}
	defaulted := vmi.DeepCopy()
	v1.Default(defaulted)
	// Checked again: a host disk may have been permitted, and a plugin of an interface registered, when the VMI came, and
	// not be so any more.
	if errs := slices.Concat(v1.ValidateHostDisks(vmi, cluster), v1.ValidateBindings(vmi, cluster), v1.ValidateFilesystemClaims(defaulted)); len(errs) > 0 {
		r.refuse(vmi, v1.ReasonInvalidSpec, errs.ToAggregate().Error())
		return nil, nil
	}
	config, err := r.podConfig(ctx)
	if err != nil {
		return nil, err
	}
	if config.Resources, err = r.cardResources(ctx, vmi); err != nil {
		setReady(status, metav1.ConditionFalse, v1.ReasonPodNotExists, "the launcher pod is not created yet", r.now())
		vmi.Status.Complain(v1.ReasonFailedCreate, err.Error(), r.now())
		return nil, err
	}
	pod := Pod(defaulted, config)
	r.Follow.Note(metadataOf(vmi), pod)
	err = kit.CreatePod(ctx, r.Client, r.Live, pod, room(defaulted, config))
	if apierrors.IsAlreadyExists(err) {
		existing := &corev1.Pod{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(pod), existing); apierrors.IsNotFound(err) {
			return nil, errVanished
		} else if err != nil {
			return nil, fmt.Errorf("get pod %s: %w", pod.Name, err)
		}
		if !owns(vmi, existing) {
			err = fmt.Errorf("a pod %q that is not this VMI's is in the way; delete it: %w", pod.Name, err)
		} else if rejected(existing) {
			rejection(existing).note(status, r.now())
			return nil, nil
		} else {
			observe(status, existing, r.now())
			return existing, nil
		}
	}
	if apierrors.IsConflict(err) {
		return nil, fmt.Errorf("create launcher pod: %w: %s", errContended, err)
	}
	if err != nil {
		setReady(status, metav1.ConditionFalse, v1.ReasonPodNotExists, "the launcher pod could not be created", r.now())
		vmi.Status.Complain(v1.ReasonFailedCreate, err.Error(), r.now())
		return nil, fmt.Errorf("create launcher pod: %w", err)
	}
	r.Events.Eventf(vmi, pod, corev1.EventTypeNormal, "SuccessfulCreate", "Create", "Created virtual machine pod %s",
		pod.Name)
	status.RemoveCondition(v1.ConditionSynchronized)
	status.RemoveCondition(v1.ConditionReady) // of a pod before
	observe(status, pod, r.now())
	return pod, nil
}

// claimKind returns what the VMI calls a claim. A DataVolume's claim has the DataVolume's name.
func claimKind(vmi *v1.VirtualMachineInstance, name string) string {
	if slices.ContainsFunc(vmi.Spec.Volumes,
		func(v v1.Volume) bool { return v.DataVolume != nil && v.DataVolume.Name == name }) {
		return "DataVolume"
	}
	return "PVC"
}

// podConfig returns what the VMI's pods are rendered with.
func (r *Reconciler) podConfig(ctx context.Context) (PodConfig, error) {
	cluster, err := r.cluster(ctx)
	if err != nil {
		return PodConfig{}, err
	}
	config := r.Config
	config.Cluster = cluster
	config.Emulation = config.Emulation || cluster.EmulationPermitted()
	config.Unlabelled, err = r.unlabelled(ctx)
	return config, err
}

// replaceAfter is the least age at which a rejected pod is replaced. A node may reject every
// pod: the wait keeps the attempts apart, and grows with the VMI's age (retryAfter).
const replaceAfter = 3 * time.Second

// replace deletes a pod in which no guest can start. Once the pod is gone, create makes another. replace
// returns how long to wait if it is too early to delete the pod.
func (r *Reconciler) replace(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod,
	why replacement) (time.Duration, error) {
	noted := wasRejected(&vmi.Status)
	why.note(&vmi.Status, r.now())
	if pod.DeletionTimestamp != nil || !noted {
		// The status must say first that the pod is replaced: without that, a pod that is
		// gone would end the VMI. The event of the status write brings us back.
		return 0, nil
	}
	waited := r.Clock.Since(pod.CreationTimestamp.Time)
	// This clock may be minutes behind the API server's. A pod from further in the future was
	// made before this clock was set back, and need not wait.
	if wait := r.retryAfter(vmi, replaceAfter) - waited; wait > 0 && waited > -longestDelay {
		return min(wait, longestDelay), nil
	}
	if err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); err != nil {
		return 0, fmt.Errorf("delete launcher pod that cannot start: %w", err)
	}
	return 0, nil
}
