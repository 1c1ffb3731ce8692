package vmi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// This file says in words why no node takes a pod.

// explainScheduling adds to the scheduler's complaint which of the guest's wishes no node can fulfil, and which
// StorageClass a claim lacks. The scheduler names neither.
func (r *Reconciler) explainScheduling(ctx context.Context, t *turn) (time.Duration, error) {
	vmi := t.vmi
	c := vmi.Status.Condition(v1.ConditionPodScheduled)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1.ReasonUnschedulable {
		return 0, nil
	}
	lacks, err := r.lackingClasses(ctx, vmi)
	if err != nil {
		return 0, err
	}
	if lacks != "" {
		c.Message += "; " + lacks
	}
	config, err := r.podConfig(ctx)
	if err != nil {
		return 0, err
	}
	defaulted := vmi.DeepCopy()
	v1.Default(defaulted)
	nodes, err := r.nodeLabels(ctx)
	if err != nil {
		return 0, err
	}
	selector := cpuSelector(defaulted, config)
	if hasPasst(defaulted) {
		selector[v1.PasstLabel] = yes
	}
	if why := unmet(selector, forbidden(defaulted), nodes); why != "" {
		c.Message += "; " + why
	}
	return 0, nil
}

// maxUnmet bounds the message.
const maxUnmet = 8

// RuledOut returns which labels of CPUs, or of passt, keep a migration's target pod off the nodes, or "" if
// none does. It reads the pod past the cache, which has no selectors.
func (r *Reconciler) RuledOut(ctx context.Context, target *corev1.Pod) (string, error) {
	pod := &corev1.Pod{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(target), pod); err != nil {
		return "", fmt.Errorf("get the target pod: %w", err)
	}
	nodes, err := r.nodeLabels(ctx)
	if err != nil {
		return "", err
	}
	selector := map[string]string{}
	for key, value := range pod.Spec.NodeSelector {
		if v1.IsCPULabel(key) || key == v1.PasstLabel {
			selector[key] = value
		}
	}
	forbidden, left := affinityOf(pod)
	for _, name := range left {
		delete(nodes, name)
	}
	return unmet(selector, forbidden, nodes), nil
}

// affinityOf returns, of a pod's affinity, which labels of CPUs its nodes must not have, and which nodes the
// guest is to leave.
func affinityOf(pod *corev1.Pod) (forbidden, left []string) {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil ||
		pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, nil
	}
	for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Operator == corev1.NodeSelectorOpDoesNotExist && v1.IsCPULabel(e.Key) && !slices.Contains(forbidden, e.Key) {
				forbidden = append(forbidden, e.Key)
			}
		}
		for _, e := range term.MatchFields {
			if e.Key == metav1.ObjectNameField && e.Operator == corev1.NodeSelectorOpNotIn {
				left = append(left, e.Values...)
			}
		}
	}
	return forbidden, left
}

// unmet returns why no node has all labels of a selector and none of those that are forbidden, or "" if a node
// is so.
func unmet(selector map[string]string, forbidden []string, nodes map[string]map[string]string) string {
	if len(nodes) == 0 {
		return "there is no other node"
	}
	nearest, fewest := "", []string(nil)
	missing := slices.Sorted(maps.Keys(selector)) // on every node
	unwanted := slices.Clone(forbidden)           // which every node has
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		labels := nodes[name]
		missing = slices.DeleteFunc(missing, func(key string) bool { return labels[key] == selector[key] })
		if labels[v1.SchedulableLabel] != yes {
			continue
		}
		wrong := lacks(labels, selector)
		for _, key := range forbidden {
			if _, has := labels[key]; has {
				wrong = append(wrong, key)
			}
		}
		unwanted = slices.DeleteFunc(unwanted, func(key string) bool { return !slices.Contains(wrong, key) })
		if nearest == "" || len(wrong) < len(fewest) {
			nearest, fewest = name, wrong
		}
	}
	var said []string
	obsolete := func(key string) bool {
		model, ok := strings.CutPrefix(key, v1.CPUModelLabel)
		onANode := func(n map[string]string) bool { return n[v1.MigrationCPUModelLabel+model] != "" }
		if !ok || !slices.ContainsFunc(slices.Collect(maps.Values(nodes)), onANode) {
			return false
		}
		said = append(said,
			fmt.Sprintf("the CPU model %s is obsolete (spec.configuration.obsoleteCPUModels of the KubeVirt object)", model))
		return true
	}
	if missing = slices.DeleteFunc(missing, obsolete); len(missing) > 0 {
		said = append(said, "no node can give the guest "+wishes(missing)+"; the nodes' labels say what they can give")
	}
	if len(unwanted) > 0 && nearest != "" {
		said = append(said, "every node has, though the guest forbids it, "+wishes(unwanted))
	}
	if len(said) == 0 && len(fewest) > 0 {
		said = append(said, fmt.Sprintf("no single node fits the guest; node %s comes nearest, and does not fit by %s",
			nearest, wishes(fewest)))
	}
	return strings.Join(said, "; ")
}

// lacks returns the labels of a selector that a node does not have, sorted.
func lacks(labels, selector map[string]string) (out []string) {
	for key, value := range selector {
		if labels[key] != value {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// wishes returns what labels stand for, in words.
func wishes(labels []string) string {
	var out []string
	for _, label := range labels {
		out = append(out, wish(label))
	}
	slices.Sort(out)
	more := ""
	if n := len(out) - maxUnmet; n > 0 {
		out, more = out[:maxUnmet], fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(out, ", ") + more
}

// wish returns what a label stands for, in words.
func wish(label string) string {
	for _, w := range []struct{ prefix, text string }{
		{v1.CPUModelLabel, "the CPU model "}, {v1.CPUFeatureLabel, "the CPU feature "},
		{v1.HyperVLabel, "Hyper-V's interface "}, {v1.GuestTSCLabel, "a TSC with the frequency "},
		{v1.PasstLabel, "the seccomp profile that passtBinding needs: put config/passt/passt.json " +
			"of this release on a node as " + v1.PasstProfile + " in the kubelet's folder seccomp " +
			"(a kernel with AppArmor, or without user namespaces, denies passt what it needs), or use masquerade"},
	} {
		if name, ok := strings.CutPrefix(label, w.prefix); ok {
			return w.text + name + " (" + label + ")"
		}
	}
	return label
}
