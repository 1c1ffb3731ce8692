// Package nodefit says which nodes a guest may go to, as far as node selectors, cordons and taints tell. It is pure. The scheduler
// knows more, such as affinities and how much memory is free.
package nodefit

import (
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Selector selects the nodes that have, or had, a virt-handler, and that the guest's pods may be on.
func Selector(vmi *v1.VirtualMachineInstance, cluster *v1.KubeVirtConfiguration) (labels.Selector, error) {
	wanted := labels.Set{}
	maps.Copy(wanted, cluster.NodeSelectors())
	maps.Copy(wanted, vmi.Spec.NodeSelector)
	if vmi.Spec.Architecture != "" {
		wanted[corev1.LabelArchStable] = cluster.NodeArchitecture(vmi.Spec.Architecture)
	}
	selector, err := labels.ValidatedSelectorFromSet(wanted)
	if err != nil {
		return nil, err
	}
	// The label is "false" while virt-handler is away.
	handler, err := labels.NewRequirement(v1.SchedulableLabel, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	return selector.Add(*handler), nil
}

// faults is the prefix of taints by which Kubernetes itself says that a node has a fault.
const faults = "node.kubernetes.io/"

// Takes says whether the scheduler may put a pod with these tolerations on a node, once the node has no fault.
func Takes(node *corev1.Node, tolerations []corev1.Toleration) bool {
	if node.Spec.Unschedulable || node.DeletionTimestamp != nil {
		return false
	}
	return !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || strings.HasPrefix(taint.Key, faults) {
			return false
		}
		return !slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(logr.Discard(), &taint, true) })
	})
}

// Drained says whether a guest with these tolerations is to leave a node, because the node has a taint with the key. A guest that tolerates
// the taint stays: it could come back at once.
func Drained(node *corev1.Node, key string, tolerations []corev1.Toleration) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == key && taint.Effect == corev1.TaintEffectNoSchedule &&
			!slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(logr.Discard(), &taint, true) })
	})
}
