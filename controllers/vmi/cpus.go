package vmi

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// This file chooses nodes by the labels that say which CPUs they can give guests (package nodelabel).

// yes is the value of such labels.
const yes = "true"

// cpuSelector returns the labels that a guest's node must have. A CPU model or feature that no QEMU knows gets no
// label here. The node refuses the guest and says so; a selector would leave the guest without a node for ever. An
// emulated guest has no interfaces of Hyper-V, nor the CPU feature that evmcs alone needs. So the labels for these
// are left out where emulation is permitted. If any node has no CPU labels, nodes are chosen only by the frequency of
// the TSC. The node's virt-handler still refuses what its QEMU cannot do.
func cpuSelector(vmi *v1.VirtualMachineInstance, config PodConfig) map[string]string {
	domain, selector := &vmi.Spec.Domain, map[string]string{}
	if f := vmi.TSCFrequency(); f != 0 {
		selector[v1.GuestTSCLabel+strconv.FormatInt(f, 10)] = yes
	}
	if config.Unlabelled {
		return selector
	}
	if model := domain.CPU.NamedModel(); v1.KnownCPUModel(model) {
		selector[v1.CPUModelLabel+model] = yes
	}
	for _, name := range required(domain, config.Emulation) {
		selector[v1.CPUFeatureLabel+name] = yes
	}
	if config.Emulation {
		return selector
	}
	for _, name := range domain.HyperVNeeds() {
		selector[v1.HyperVLabel+name] = yes
	}
	return selector
}

// required returns QEMU's names of the CPU features without which the guest does not start.
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

// forbidden returns the labels of the features that the guest forbids.
func forbidden(vmi *v1.VirtualMachineInstance) (out []string) {
	if vmi.Spec.Domain.CPU == nil {
		return nil
	}
	for _, f := range vmi.Spec.Domain.CPU.Features {
		if f.Policy == v1.FeatureForbid {
			out = append(out, v1.CPUFeatureLabel+f.QEMUName())
		}
	}
	return out
}

// avoidForbidden keeps a pod off the nodes whose CPUs have a feature that the guest forbids.
func avoidForbidden(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) {
	var off []corev1.NodeSelectorRequirement
	for _, label := range forbidden(vmi) {
		off = append(off, corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpDoesNotExist})
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
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: labels, MatchFields: fields}}}
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

// admitObsolete also lets a migration's target be on a node that can give the guest's named model but counts that
// model as obsolete.
func admitObsolete(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) {
	model := vmi.Spec.Domain.CPU.NamedModel()
	label := v1.CPUModelLabel + model
	_, own := vmi.Spec.NodeSelector[label]
	if value, ok := pod.Spec.NodeSelector[label]; ok && !own {
		delete(pod.Spec.NodeSelector, label)
		pod.Spec.NodeSelector[v1.MigrationCPUModelLabel+model] = value
	}
}

// targetCPU returns the labels that a migration's target must have if the guest has the CPU of its node: KubeVirt's
// rule. present is the guest's pod. If the guest has moved before, the labels stay those that its first migration
// chose, because the guest keeps its first node's CPU. A node that tells nothing is left to the virt-handlers, which
// compare the processors.
func targetCPU(vmi *v1.VirtualMachineInstance, present *corev1.Pod, node map[string]string) map[string]string {
	out := map[string]string{}
	if cpu := vmi.Spec.Domain.CPU; cpu == nil || cpu.Model != v1.HostModel {
		return out
	}
	if present != nil {
		for key, value := range present.Spec.NodeSelector {
			// A label that the user selects says nothing of the guest's first node.
			if _, own := vmi.Spec.NodeSelector[key]; !own &&
				(strings.HasPrefix(key, v1.MigrationCPUModelLabel) || strings.HasPrefix(key, v1.CPUFeatureLabel) ||
					strings.HasPrefix(key, v1.CPUVendorLabel)) {
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

// nodes returns the cache's own nodes, which the caller must not change.
func (r *Reconciler) nodes(ctx context.Context) ([]metav1.PartialObjectMetadata, error) {
	nodes := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if err := r.Client.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return nodes.Items, nil
}

// nodeLabels returns the labels of the nodes, by name.
func (r *Reconciler) nodeLabels(ctx context.Context) (map[string]map[string]string, error) {
	nodes, err := r.nodes(ctx)
	out := map[string]map[string]string{}
	for i := range nodes {
		out[nodes[i].Name] = nodes[i].Labels
	}
	return out, err
}

// unlabelled reports whether a node that takes guests does not tell which CPUs it can give. A node whose labels an
// administrator maintains does not count: it has all the labels that it is meant to have.
func (r *Reconciler) unlabelled(ctx context.Context) (bool, error) {
	nodes, err := r.nodes(ctx)
	return slices.ContainsFunc(nodes, func(n metav1.PartialObjectMetadata) bool {
		if n.Labels[v1.SchedulableLabel] != yes || n.Annotations[v1.SkipNodeAnnotation] == yes {
			return false
		}
		if n.Labels[corev1.LabelArchStable] == v1.ARM64 {
			return false // which tells nothing of its CPU, and takes no guest that asks for any
		}
		for key := range n.Labels {
			if v1.IsCPULabel(key) {
				return false
			}
		}
		return true
	}), err
}
