package vmi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// This file chooses the frequency of a guest's TSC.

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
	if f := chooseTSC(fit, config.Cluster.MinimumTSC()); f != 0 {
		vmi.Status.TopologyHints = &v1.TopologyHints{TSCFrequency: ptr.To(f)}
	}
	return 0, nil
}

// writeFrequency keeps a VMI from its pod until a frequency that was just chosen is written. The event of the write
// brings the VMI back.
func (r *Reconciler) writeFrequency(_ context.Context, t *turn) (time.Duration, error) {
	if t.vmi.Status.TopologyHints != nil && t.before.Status.TopologyHints == nil {
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
		if err := r.Live.List(ctx, nodes, client.MatchingLabels(selector), client.Limit(500),
			client.Continue(nodes.Continue)); err != nil {
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
