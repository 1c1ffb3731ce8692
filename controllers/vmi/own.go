package vmi

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/follow"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// pod returns the launcher pod that has the VMI's guest, or nil. watched says whether the pod's changes bring us
// back. A pod without the launchers' label is not in the cache, and a pod without owner may name another VMI, or none.
func (r *Reconciler) pod(ctx context.Context,
	vmi *v1.VirtualMachineInstance) (pod *corev1.Pod, watched bool, err error) {
	// A VMI ends when its pod is gone, so the cache, which may be behind, is not enough.
	live := (vmi.Status.Phase != "" || vmi.DeletionTimestamp != nil) && !vmi.IsFinal()
	pod, watched, err = r.ownPod(ctx, vmi, vmi.LauncherPod(), live)
	return pod, watched && nameOfVMI(pod) == vmi.Name, err
}

// ownPod returns the VMI's pod of a name, or nil. A pod of the right name that is not the VMI's own does not count,
// whatever its labels say. If live is set, a pod that the cache lacks is read
// past the cache.
func (r *Reconciler) ownPod(ctx context.Context, vmi *v1.VirtualMachineInstance, name string,
	live bool) (pod *corev1.Pod, cached bool, err error) {
	pod = &corev1.Pod{}
	key := client.ObjectKey{Namespace: vmi.Namespace, Name: name}
	err = r.Client.Get(ctx, key, pod)
	if cached = !apierrors.IsNotFound(err); !cached && live {
		err = r.Live.Get(ctx, key, pod)
	}
	switch {
	case apierrors.IsNotFound(err), err == nil && !owns(vmi, pod):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("get launcher pod %s: %w", name, err)
	}
	return pod, cached, nil
}

// owns reports whether a pod of the right name is the VMI's. Where a VMI is deleted with --cascade=orphan, the
// garbage collector removes the pod's owner. But the guest runs on, and must end before another starts. Then
// the pod's UID in the VMI's status, which only virt-controller writes, shows the owner.
func owns(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) bool {
	return owner.Controls(v1.VirtualMachineInstanceGroupVersionKind.GroupKind(), vmi, pod) ||
		vmi.Status.ActivePods[pod.UID] != ""
}

// TrimPod returns a function that drops from a launcher pod what this package does not look at, before the pod
// is cached. That is most of the pod, and there are as many launcher pods as VMIs.
func TrimPod(keys follow.Keys) func(object any) (any, error) {
	return func(object any) (any, error) {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return object, nil
		}
		pod.ManagedFields = nil
		var kept map[string]string
		for key, value := range pod.Annotations {
			if key == v1.DomainAnnotation || key == v1.MemoryOverheadAnnotation || keys.Keeps(key) {
				if kept == nil {
					kept = map[string]string{}
				}
				kept[key] = value
			}
		}
		pod.Annotations = kept
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, NodeSelector: onlyARM64(pod.Spec.NodeSelector),
			ReadinessGates: pod.Spec.ReadinessGates, Volumes: onlyState(pod.Spec.Volumes),
			Containers: []corev1.Container{{Name: ContainerName, Image: launcherImage(pod)}}}
		return pod, nil
	}
}

func metadataOf(vmi *v1.VirtualMachineInstance) follow.Metadata {
	return follow.Metadata{Labels: vmi.Labels, Annotations: vmi.Annotations}
}

// follow brings the chosen labels and annotations of a launcher pod up to date with the VMI. It
// writes them by the pod's status: virt-controller may change pods in no other way.
func (r *Reconciler) follow(ctx context.Context, t *turn) (time.Duration, error) {
	vmi, pod := t.vmi, t.pod
	// The policy kubevirt-controller-pod-condition permits virt-controller to write pods that have
	// the gate.
	if vmi.IsFinal() || pod == nil || pod.DeletionTimestamp != nil || !hasGate(pod) {
		return 0, nil
	}
	patch, err := r.Follow.Patch(metadataOf(vmi), pod)
	if patch == nil || err != nil {
		return 0, err
	}
	if err := r.Client.Status().Patch(ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); err != nil {
		return 0, fmt.Errorf("write labels and annotations of pod %s: %w", pod.Name, err)
	}
	return 0, nil
}
