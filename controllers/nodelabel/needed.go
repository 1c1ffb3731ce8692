package nodelabel

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// needed returns the labels that a running launcher pod on the node selects. A kubelet that is restarted looks again
// whether its pods fit the node, and ends a pod that does not: without the label the guest would be lost. needed reads
// past the cache, which has no selectors.
// A pod that no VMI controls keeps no label: whoever may make pods can give them the launcher's.
func (r *Reconciler) needed(ctx context.Context, node string, labels []string) (needed map[string]bool, err error) {
	if len(labels) == 0 {
		return nil, nil
	}
	needed, pods := map[string]bool{}, corev1.PodList{}
	for {
		if err := r.Live.List(ctx, &pods, client.MatchingFields{"spec.nodeName": node}, client.MatchingLabels{v1.AppLabel: "virt-launcher"}, client.Limit(500), client.Continue(pods.Continue)); err != nil {
			return nil, fmt.Errorf("list the launcher pods of the node, for the labels that they select: %w", err)
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			for _, key := range labels {
				if !needed[key] && selects(pod, key) {
					if needed[key], err = r.launches(ctx, pod); err != nil {
						return nil, err
					}
				}
			}
		}
		if pods.Continue == "" {
			return needed, nil
		}
	}
}

// launches says whether a pod has not ended and is one of a VMI that has not ended.
func (r *Reconciler) launches(ctx context.Context, pod *corev1.Pod) (bool, error) {
	of := owner.Reference(pod, v1.VirtualMachineInstanceGroupVersionKind.GroupKind())
	if of == nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false, nil
	}
	vmi := &v1.VirtualMachineInstance{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: of.Name}, vmi)
	if err != nil {
		return false, client.IgnoreNotFound(fmt.Errorf("get the VMI of pod %s/%s: %w", pod.Namespace, pod.Name, err))
	}
	_, known := vmi.Status.ActivePods[pod.UID]
	return vmi.UID == of.UID && !vmi.IsFinal() && known, nil
}

// selects says whether a pod can be only on nodes with a label.
func selects(pod *corev1.Pod, key string) bool {
	if _, ok := pod.Spec.NodeSelector[key]; ok {
		return true
	}
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil || pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == key && e.Operator != corev1.NodeSelectorOpDoesNotExist && e.Operator != corev1.NodeSelectorOpNotIn {
				return true
			}
		}
	}
	return false
}
