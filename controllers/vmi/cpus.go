package vmi

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// This file chooses nodes by the labels that say which CPUs they can give guests (package nodelabel).

// yes is the value of such labels.
const yes = "true"

// cpuSelector are the labels that a guest's node must have. A name that no QEMU knows is left to the node, which refuses the guest and
// says so: a selector would leave the guest without a node, for ever. An emulated guest has no interfaces of Hyper-V, nor the CPU
// feature that evmcs alone needs: where emulation is permitted these choose no node.
func cpuSelector(vmi *v1.VirtualMachineInstance, emulation bool) map[string]string {
	domain, selector := &vmi.Spec.Domain, map[string]string{}
	if model := domain.CPU.NamedModel(); resolve.KnownCPUModel(model) {
		selector[v1.CPUModelLabel+model] = yes
	}
	for _, name := range required(domain, emulation) {
		selector[v1.CPUFeatureLabel+name] = yes
	}
	if f := vmi.TSCFrequency(); f != 0 {
		selector[v1.GuestTSCLabel+strconv.FormatInt(f, 10)] = yes
	}
	if emulation {
		return selector
	}
	for _, name := range domain.HyperVNeeds() {
		selector[v1.HyperVLabel+name] = yes
	}
	return selector
}

// required are QEMU's names of the CPU features without which the guest does not start.
func required(domain *v1.DomainSpec, emulation bool) (out []string) {
	if domain.CPU == nil {
		return nil
	}
	without := ""
	if emulation {
		without = resolve.NotEmulated(domain)
	}
	for _, f := range domain.CPU.Features {
		name := f.QEMUName()
		if (f.Policy == "" || f.Policy == v1.FeatureRequire) && name != without && resolve.KnownCPUFeature(name) {
			out = append(out, name)
		}
	}
	return out
}

// avoidForbidden keeps a pod off the nodes whose CPUs have a feature that the guest forbids.
func avoidForbidden(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) {
	if vmi.Spec.Domain.CPU == nil {
		return
	}
	var off []corev1.NodeSelectorRequirement
	for _, f := range vmi.Spec.Domain.CPU.Features {
		if f.Policy == v1.FeatureForbid {
			off = append(off, corev1.NodeSelectorRequirement{Key: v1.CPUFeatureLabel + f.QEMUName(), Operator: corev1.NodeSelectorOpDoesNotExist})
		}
	}
	require(pod, off, nil)
}

// require lets a pod be only on nodes that meet all requirements of labels and of fields.
func require(pod *corev1.Pod, labels, fields []corev1.NodeSelectorRequirement) {
	if len(labels)+len(fields) == 0 {
		return
	}
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	affinity := pod.Spec.Affinity.NodeAffinity
	if affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: labels, MatchFields: fields}}}
		return
	}
	// A node fits if one of the terms fits. A term without requirements fits no node.
	terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		if t := &terms[i]; len(t.MatchExpressions)+len(t.MatchFields) > 0 {
			t.MatchExpressions, t.MatchFields = append(t.MatchExpressions, labels...), append(t.MatchFields, fields...)
		}
	}
}

// targetCPU are the labels that a migration's target must have if the guest has the CPU of its node: KubeVirt's rule. They are those
// of the first pod for ever if the guest has moved before, for the guest keeps its first node's CPU; present is the guest's pod. A
// node that tells nothing is left to the virt-handlers, which compare the processors.
func targetCPU(vmi *v1.VirtualMachineInstance, present *corev1.Pod, node map[string]string) map[string]string {
	out := map[string]string{}
	if cpu := vmi.Spec.Domain.CPU; cpu == nil || cpu.Model != v1.HostModel {
		return out
	}
	if present != nil {
		for key, value := range present.Spec.NodeSelector {
			if strings.HasPrefix(key, v1.MigrationCPUModelLabel) || strings.HasPrefix(key, v1.CPUFeatureLabel) || strings.HasPrefix(key, v1.CPUVendorLabel) {
				out[key] = value
			}
		}
		for key := range out {
			if strings.HasPrefix(key, v1.MigrationCPUModelLabel) {
				return out
			}
		}
	}
	for key, value := range node {
		switch {
		case strings.HasPrefix(key, v1.HostCPUModelLabel):
			out[v1.MigrationCPUModelLabel+strings.TrimPrefix(key, v1.HostCPUModelLabel)] = value
		case strings.HasPrefix(key, v1.HostCPUFeatureLabel):
			out[v1.CPUFeatureLabel+strings.TrimPrefix(key, v1.HostCPUFeatureLabel)] = value
		case strings.HasPrefix(key, v1.CPUVendorLabel):
			out[key] = value
		}
	}
	for _, f := range vmi.Spec.Domain.CPU.Features { // which the guest is without, though its node has it
		if f.Policy == v1.FeatureDisable || f.Policy == v1.FeatureForbid {
			delete(out, v1.CPUFeatureLabel+f.QEMUName())
		}
	}
	return out
}

// nodeLabels are the cached labels of the nodes, by name.
func (r *Reconciler) nodeLabels(ctx context.Context) (map[string]map[string]string, error) {
	nodes := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if err := r.Client.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	out := map[string]map[string]string{}
	for i := range nodes.Items {
		out[nodes.Items[i].Name] = nodes.Items[i].Labels
	}
	return out, nil
}

// hint chooses the frequency of the guest's TSC before the guest has a pod: the lowest of the nodes that take guests, by KubeVirt's rule.
// Without a node that tells a frequency the guest has that of its node.
func (r *Reconciler) hint(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	if !vmi.Spec.Domain.NeedsTSCFrequency() || vmi.Status.TopologyHints != nil {
		return nil
	}
	nodes, err := r.nodeLabels(ctx)
	if err != nil {
		return err
	}
	if lowest := lowestTSC(nodes); lowest != 0 {
		vmi.Status.TopologyHints = &v1.TopologyHints{TSCFrequency: ptr.To(lowest)}
	}
	return nil
}

func lowestTSC(nodes map[string]map[string]string) (lowest int64) {
	for _, labels := range nodes {
		if f, _ := v1.NodeTSC(labels); f != 0 && labels[v1.SchedulableLabel] == yes && (lowest == 0 || f < lowest) {
			lowest = f
		}
	}
	return lowest
}

// explainScheduling adds to the scheduler's complaint which of the guest's wishes no node can fulfil: the scheduler names no label.
func (r *Reconciler) explainScheduling(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	c := vmi.Status.Condition(v1.ConditionPodScheduled)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1.ReasonUnschedulable {
		return nil
	}
	config, err := r.podConfig(ctx)
	if err != nil {
		return err
	}
	selector := cpuSelector(vmi, config.Emulation)
	if len(selector) == 0 {
		return nil
	}
	nodes, err := r.nodeLabels(ctx)
	if err != nil {
		return err
	}
	if why := unmet(selector, nodes); why != "" {
		c.Message += "; " + why
	}
	return nil
}

// maxUnmet bounds the message.
const maxUnmet = 8

// unmet says which labels of a selector no node has; empty if each is on a node.
func unmet(selector map[string]string, nodes map[string]map[string]string) string {
	var missing []string
	for key, value := range selector {
		found := false
		for _, labels := range nodes {
			found = found || labels[key] == value
		}
		if !found {
			missing = append(missing, wish(key))
		}
	}
	if len(missing) == 0 {
		return ""
	}
	slices.Sort(missing)
	more := ""
	if n := len(missing) - maxUnmet; n > 0 {
		missing, more = missing[:maxUnmet], fmt.Sprintf(" and %d more", n)
	}
	return "no node can give the guest " + strings.Join(missing, ", ") + more + "; the nodes' labels say what they can give"
}

// wish is what a label stands for, in words.
func wish(label string) string {
	for _, w := range []struct{ prefix, text string }{
		{v1.CPUModelLabel, "the CPU model "}, {v1.CPUFeatureLabel, "the CPU feature "}, {v1.HyperVLabel, "Hyper-V's interface "}, {v1.GuestTSCLabel, "a TSC with the frequency "},
	} {
		if name, ok := strings.CutPrefix(label, w.prefix); ok {
			return w.text + name + " (" + label + ")"
		}
	}
	return label
}
