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
	"github.com/kubeqemu/kubeqemu/api/validation"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// complain writes into the status why the VMI has no pod yet.
func (r *Reconciler) complain(vmi *v1.VirtualMachineInstance, reason, message string) {
	r.notCreated(vmi)
	vmi.Status.Complain(reason, message, r.now())
}

// notCreated notes in the status that the VMI has no pod yet.
func (r *Reconciler) notCreated(vmi *v1.VirtualMachineInstance) {
	setReady(&vmi.Status, metav1.ConditionFalse, v1.ReasonPodNotExists, "the launcher pod is not created yet", r.now())
}

// waitForClaims keeps a VMI from its pod while one of its claims does not exist. The claim's event brings the VMI
// back.
func (r *Reconciler) waitForClaims(_ context.Context, t *turn) (time.Duration, error) {
	if t.missing == "" {
		return 0, nil
	}
	r.complain(t.vmi, v1.ReasonPvcNotFound, fmt.Sprintf("%s %s/%s does not exist, waiting for it to appear",
		claimKind(t.vmi, t.missing), t.vmi.Namespace, t.missing))
	return 0, errSkipRest
}

// checkAgain ends a VMI that is not valid any more. A host disk may have been permitted, and a plugin of an
// interface registered, when the VMI came.
func (r *Reconciler) checkAgain(ctx context.Context, t *turn) (time.Duration, error) {
	cluster, err := r.cluster(ctx)
	if err != nil {
		return 0, err
	}
	defaulted := t.vmi.DeepCopy()
	v1.Default(defaulted)
	errs := slices.Concat(validation.ValidateHostDisks(t.vmi, cluster), validation.ValidateBindings(t.vmi, cluster),
		validation.ValidateFilesystemClaims(defaulted))
	if len(errs) > 0 {
		r.refuse(t.vmi, v1.ReasonInvalidSpec, errs.ToAggregate().Error())
		return 0, errSkipRest
	}
	return 0, nil
}

// createPod makes the launcher pod.
func (r *Reconciler) createPod(ctx context.Context, t *turn) (time.Duration, error) {
	vmi := t.vmi
	config, err := r.podConfig(ctx)
	if err == nil {
		err = r.findWay(ctx, vmi, &config)
	}
	if err != nil {
		r.complain(vmi, v1.ReasonFailedCreate, err.Error())
		return 0, err
	}
	if config.Resources, err = r.cardResources(ctx, vmi); err != nil {
		r.complain(vmi, v1.ReasonFailedCreate, err.Error())
		return 0, err
	}
	defaulted := vmi.DeepCopy()
	v1.Default(defaulted)
	pod := Pod(defaulted, config)
	r.Follow.Note(metadataOf(vmi), pod)
	err = kit.CreatePod(ctx, r.Client, r.Live, pod, room(defaulted, config))
	switch {
	case err == nil:
	case apierrors.IsAlreadyExists(err):
		return r.adoptPod(ctx, t, pod.Name, err)
	case apierrors.IsConflict(err):
		return 0, fmt.Errorf("create launcher pod: %w: %s", errSoon, err)
	default:
		return 0, r.notCreatable(vmi, err)
	}
	r.Events.Eventf(vmi, pod, corev1.EventTypeNormal, "SuccessfulCreate", "Create", "Created virtual machine pod %s",
		pod.Name)
	// Whoever complained, it was of a pod before, or of what a pod needs and now has.
	vmi.Status.RemoveCondition(v1.ConditionSynchronized)
	vmi.Status.RemoveCondition(v1.ConditionReady) // of a pod before
	return r.noteNewPod(t, pod)
}

// notCreatable notes in the status why the pod cannot be created, and returns the error.
func (r *Reconciler) notCreatable(vmi *v1.VirtualMachineInstance, err error) error {
	setReady(&vmi.Status, metav1.ConditionFalse, v1.ReasonPodNotExists, "the launcher pod could not be created", r.now())
	vmi.Status.Complain(v1.ReasonFailedCreate, err.Error(), r.now())
	return fmt.Errorf("create launcher pod: %w", err)
}

// adoptPod takes the pod that has the launcher pod's name already, if the pod is the VMI's: the cache was behind.
// exists is the API server's refusal of another.
func (r *Reconciler) adoptPod(ctx context.Context, t *turn, name string, exists error) (time.Duration, error) {
	pod := &corev1.Pod{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: t.vmi.Namespace, Name: name}, pod)
	switch {
	case apierrors.IsNotFound(err):
		return 0, errSoon
	case err != nil:
		return 0, fmt.Errorf("get pod %s: %w", name, err)
	case !owns(t.vmi, pod):
		return 0, r.notCreatable(t.vmi,
			fmt.Errorf("a pod %q that is not this VMI's is in the way; delete it: %w", name, exists))
	case rejected(pod):
		r.noteReplaced(&world{vmi: t.vmi, pod: pod})
		return 0, nil
	}
	return r.noteNewPod(t, pod)
}

// noteNewPod brings the status up to date with a pod that was just made. It ends the turn of a VMI whose pod the
// scheduler has not looked at.
func (r *Reconciler) noteNewPod(t *turn, pod *corev1.Pod) (time.Duration, error) {
	if early(&t.before.Status, pod, r.Clock.Now()) {
		return earlyDelay, errSkipAll
	}
	t.pod = pod
	observe(&t.vmi.Status, pod, r.now())
	return 0, nil
}

// earlyDelay is how long the scheduler has for a new pod before the VMI's status reports the
// pod. So one write reports the pod and its node, instead of two writes. A bound pod is
// reported at once.
const earlyDelay = time.Second

// early reports whether a pod was just made, the scheduler has not looked at it yet, and the VMI's status does
// not report it.
func early(status *v1.VirtualMachineInstanceStatus, pod *corev1.Pod, now time.Time) bool {
	if pod == nil || reported(status) {
		return false
	}
	age := now.Sub(pod.CreationTimestamp.Time) // in whole seconds, by the API server's clock
	return pod.Spec.NodeName == "" && len(pod.Status.Conditions) == 0 && age.Abs() < 2*earlyDelay
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
