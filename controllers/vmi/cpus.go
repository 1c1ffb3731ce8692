package vmi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

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

// cpuSelector returns the labels that a guest's node must have. A name that no QEMU knows is left to the node,
// which refuses the guest and says so: a selector would leave the guest without a node, for ever. An emulated
// guest has no interfaces of Hyper-V, nor the CPU feature that evmcs alone needs. So these choose no node where
// emulation is permitted. Where a node tells nothing, only the frequency of the TSC chooses nodes. The node's
// virt-handler still refuses what its QEMU cannot do.
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

// admitObsolete lets a migration's target be on a node whose label of the guest's named model says that the
// model is obsolete.
func admitObsolete(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) {
	model := vmi.Spec.Domain.CPU.NamedModel()
	label := v1.CPUModelLabel + model
	_, own := vmi.Spec.NodeSelector[label]
	if value, ok := pod.Spec.NodeSelector[label]; ok && !own {
		delete(pod.Spec.NodeSelector, label)
		pod.Spec.NodeSelector[v1.MigrationCPUModelLabel+model] = value
	}
}

// targetCPU returns the labels that a migration's target must have if the guest has the CPU of its node:
// KubeVirt's rule. present is the guest's pod. If the guest has moved before, they are those of the first pod
// for ever, because the guest keeps its first node's CPU. A node that tells nothing is left to the
// virt-handlers, which compare the processors.
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

// nodeLabels returns the cached labels of the nodes, by name.
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

// unlabelled reports whether a node that takes guests does not tell which CPUs it can give. A node whose labels
// an administrator keeps tells as much as it is to tell.
func (r *Reconciler) unlabelled(ctx context.Context) (bool, error) {
	nodes := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if err := r.Client.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list nodes, for the labels of their CPUs: %w", err)
	}
	return slices.ContainsFunc(nodes.Items, func(n metav1.PartialObjectMetadata) bool {
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
	}), nil
}

// chooseFrequency chooses the frequency of the guest's TSC before the guest has a pod. Without a fitting node that
// tells a frequency the guest has that of its node.
func (r *Reconciler) chooseFrequency(ctx context.Context, t *turn) (time.Duration, error) {
	vmi := t.vmi
	if !vmi.Spec.Domain.NeedsTSCFrequency() || vmi.Status.TopologyHints != nil {
		return 0, nil
	}
	config, err := r.podConfig(ctx)
	if err != nil {
		return 0, err
	}
	fit, err := r.fitting(ctx, vmi, config)
	if err != nil {
		return 0, err
	}
	f := chooseTSC(fit, config.Cluster.MinimumTSC())
	if f == 0 {
		return 0, nil
	}
	vmi.Status.TopologyHints, t.chosen = &v1.TopologyHints{TSCFrequency: ptr.To(f)}, true
	return 0, nil
}

// writeFrequency has a frequency that was just chosen written before the VMI gets its pod. The event of the write
// brings the VMI back.
func (r *Reconciler) writeFrequency(_ context.Context, t *turn) (time.Duration, error) {
	if t.chosen {
		return 0, errSkipRest
	}
	return 0, nil
}

// fitting returns the labels of the nodes that take guests, and on which the VMI's can be by its CPU and its
// node selector.
func (r *Reconciler) fitting(ctx context.Context, vmi *v1.VirtualMachineInstance,
	config PodConfig) (out []map[string]string, err error) {
	defaulted := vmi.DeepCopy()
	v1.Default(defaulted)
	nodes, err := r.nodeLabels(ctx)
	if err != nil {
		return nil, err
	}
	selected, err := r.selectedNodes(ctx, vmi.Spec.NodeSelector)
	if err != nil {
		return nil, err
	}
	selector := cpuSelector(defaulted, config)
	for name, labels := range nodes {
		if labels[v1.SchedulableLabel] == yes && len(lacks(labels, selector)) == 0 && (selected == nil || selected[name]) {
			out = append(out, labels)
		}
	}
	return out, nil
}

// selectedNodes returns the nodes with some labels. nil stands for all. It reads past the cache, which has no
// labels of others.
func (r *Reconciler) selectedNodes(ctx context.Context, selector map[string]string) (map[string]bool, error) {
	if len(selector) == 0 {
		return nil, nil
	}
	nodes, out := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}},
		map[string]bool{}
	for {
		if err := r.Live.List(ctx, nodes, client.MatchingLabels(selector), client.Limit(500), client.Continue(nodes.Continue)); err != nil {
			return nil, fmt.Errorf("list the nodes of spec.nodeSelector: %w", err)
		}
		for i := range nodes.Items {
			out[nodes.Items[i].Name] = true
		}
		if nodes.Continue == "" {
			return out, nil
		}
	}
}

// chooseTSC returns the frequency that most nodes can give, and of such frequencies the lowest. None is less
// than least. 0 stands for none. A node may be in others' hands: a frequency is not believed if most nodes tell
// more than twice as much. A frequency that guests have already is preferred to another that KVM takes for the
// same, so that nodes have fewer labels.
func chooseTSC(nodes []map[string]string, least int64) (best int64) {
	var told []int64
	for _, labels := range nodes {
		if f, _ := v1.NodeTSC(labels); f != 0 {
			told = append(told, f)
		}
	}
	slices.Sort(told)
	most := 0
	for _, own := range slices.Compact(slices.Clone(told)) {
		f, above, n := max(own, least), 0, 0
		for _, other := range told {
			if other > 2*own {
				above++
			}
		}
		if 2*above > len(told) || v1.CheckTSC(f) != nil {
			continue
		}
		for _, labels := range nodes {
			if hertz, scalable := v1.NodeTSC(labels); hertz != 0 && v1.GivesTSC(hertz, scalable, f) {
				n++
			}
		}
		if n > most {
			best, most = f, n
		}
	}
	have := map[int64]int{}
	for _, labels := range nodes {
		for key := range labels {
			text, ok := strings.CutPrefix(key, v1.GuestTSCLabel)
			if f, err := strconv.ParseInt(text, 10, 64); ok && err == nil && v1.CheckTSC(f) == nil && best != 0 &&
				v1.NearTSC(best, f) {
				have[f]++
			}
		}
	}
	for _, f := range slices.Sorted(maps.Keys(have)) {
		if f >= least && have[f] >= most {
			return f
		}
	}
	return best
}

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
		if !ok || !onAny(nodes, v1.MigrationCPUModelLabel+model) {
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

func onAny(nodes map[string]map[string]string, key string) bool {
	for _, labels := range nodes {
		if labels[key] != "" {
			return true
		}
	}
	return false
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
		{v1.PasstLabel, "the seccomp profile that passtBinding needs: put config/passt/passt.json of this release on a node as " + v1.PasstProfile + " in the kubelet's folder seccomp (a kernel with AppArmor, or without user namespaces, denies passt what it needs), or use masquerade"},
	} {
		if name, ok := strings.CutPrefix(label, w.prefix); ok {
			return w.text + name + " (" + label + ")"
		}
	}
	return label
}
