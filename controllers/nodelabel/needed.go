package nodelabel

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// needed are those of a node's labels that a launcher pod on the node selects which has not ended. A kubelet that is restarted looks again whether its pods
// fit the node, and ends a pod that does not: without the label the guest would be lost. It reads past the cache, which has no selectors.
func (r *Reconciler) needed(ctx context.Context, node string, labels []string) (map[string]bool, error) {
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
			if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
				continue
			}
			for _, key := range labels {
				needed[key] = needed[key] || selects(pod, key)
			}
		}
		if pods.Continue == "" {
			return needed, nil
		}
	}
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
