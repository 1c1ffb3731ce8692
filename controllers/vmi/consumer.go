package vmi

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// Storage of the binding mode WaitForFirstConsumer is bound where the first pod of a claim is
// scheduled. CDI fills such a claim only after that, and a guest must not start before its disk is
// filled. So the first pod is a consumer: it has the launcher pod's claims and placement, and ends
// at once.

// consumerLabel is the label v1.AppLabel of consumers. Launcher pods have another, so that no
// component takes a consumer for one.
const consumerLabel = "virt-consumer"

// consumerTime is how long CDI has, after a consumer ended, to notice that the claim is bound.
const consumerTime = 30 * time.Second

// ConsumerName returns the name of a VMI's consumer.
func ConsumerName(vmi *v1.VirtualMachineInstance) string {
	return v1.ConsumerPodName(vmi.Name, vmi.UID)
}

// Consumer renders a VMI's consumer. It asks for the same resources as the launcher pod, one slot
// included, so that it is scheduled as the launcher pod will be. Nothing keeps the room until then.
func Consumer(vmi *v1.VirtualMachineInstance, config PodConfig) *corev1.Pod {
	pod := Pod(vmi, config)
	pod.Name = ConsumerName(vmi)
	pod.Labels = vmi.PodLabels() // affinities and spread constraints count pods by labels
	pod.Labels[v1.AppLabel] = consumerLabel
	delete(pod.Annotations, v1.EvictOnlyAnnotation)
	var volumes []corev1.Volume
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			volumes = append(volumes, v)
		}
	}
	pod.Spec.Volumes, pod.Spec.InitContainers = volumes, nil
	c := &pod.Spec.Containers[0]
	c.Command = []string{launcherBinary, "bind-claims"}
	c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return !slices.ContainsFunc(volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
	})
	c.LivenessProbe, c.ReadinessProbe, c.Ports = nil, nil, nil
	return pod
}

// consume makes sure that a VMI's claims get their first pod, and returns what the VMI waits for.
func (r *Reconciler) consume(ctx context.Context, vmi *v1.VirtualMachineInstance) (string, error) {
	name := ConsumerName(vmi)
	pod := &corev1.Pod{}
	// Consumers are not cached: few VMIs have one.
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: vmi.Namespace, Name: name}, pod)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("consumer %s is made", name), r.createConsumer(ctx, vmi)
	case err != nil:
		return "", fmt.Errorf("get pod %s: %w", name, err)
	case !owns(vmi, pod):
		return fmt.Sprintf("a pod %s that is not this VMI's is in the way of its consumer; delete it", name), nil
	}
	observeScheduling(&vmi.Status, pod, r.now())
	permitted(&vmi.Status)
	since := r.Clock.Since(endOf(pod, r.Clock.Now()))
	// This clock may have been set back since the pod was made.
	if !ended(pod) || pod.DeletionTimestamp != nil || since < r.retryAfter(vmi, consumerTime) && since > -longestDelay {
		return fmt.Sprintf("consumer %s is %s", name, pod.Status.Phase), nil
	}
	return fmt.Sprintf("consumer %s ended in vain, and is made anew", name), r.deletePod(ctx, pod)
}

// endOf returns when a pod's container ended, or else when the pod was made. A pod that a node rejected has no
// container, and a node's clock may be wrong.
func endOf(pod *corev1.Pod, now time.Time) time.Time {
	made := pod.CreationTimestamp.Time
	if c := computeStatus(pod); c != nil && c.State.Terminated != nil {
		if end := c.State.Terminated.FinishedAt.Time; end.After(made) && !end.After(now) {
			return end
		}
	}
	return made
}

// permitted ends the complaint that a VMI's consumer could not be made.
func permitted(status *v1.VirtualMachineInstanceStatus) {
	// After Pending, the complaint is about a launcher pod that was rejected: see wasRejected.
	if status.Phase == v1.Pending {
		status.EndComplaint(v1.OwnerPod)
	}
}

func (r *Reconciler) createConsumer(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	config, err := r.podConfig(ctx)
	if err != nil {
		return err
	}
	defaulted := vmi.DeepCopy()
	v1.Default(defaulted)
	pod := Consumer(defaulted, config)
	err = kit.CreatePod(ctx, r.Client, r.Live, pod, kit.Room{CPUs: 1})
	switch {
	case apierrors.IsConflict(err):
		return fmt.Errorf("create pod %s: %w: %s", pod.Name, errSoon, err)
	case err != nil && !apierrors.IsAlreadyExists(err):
		vmi.Status.Complain(v1.ReasonFailedCreate, err.Error(), r.now())
		return fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	permitted(&vmi.Status)
	if err == nil {
		r.Events.Eventf(vmi, pod, corev1.EventTypeNormal, "SuccessfulCreate", "Bind",
			"Created pod %s, which binds the VMI's claims and ends", pod.Name)
	}
	return nil
}

// consumed deletes the consumer of a VMI whose claims are bound, if there is one. A consumer that does not end
// would keep CDI's pods on other nodes from the claims.
func (r *Reconciler) consumed(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	pod := &corev1.Pod{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: vmi.Namespace, Name: ConsumerName(vmi)}, pod)
	if apierrors.IsNotFound(err) || err == nil && !owns(vmi, pod) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get pod %s: %w", ConsumerName(vmi), err)
	}
	return r.deletePod(ctx, pod)
}

func (r *Reconciler) deletePod(ctx context.Context, pod *corev1.Pod) error {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	if err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	return nil
}
