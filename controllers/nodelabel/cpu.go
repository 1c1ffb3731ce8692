package nodelabel

import (
	"fmt"
	"slices"
	"strconv"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/hostcpu"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// CPUKey is an annotation of Leases: which CPUs the node can give guests, a hostcpu.Told.
const CPUKey = "kubeqemu.io/cpu"

// Names that labels may have, besides those of CPU models and features.
var (
	vendors = []string{"Intel", "AMD", "Hygon", "Zhaoxin", "Centaur"}
	hyperV  = []string{"base", "vpindex", "runtime", "reset", "synic", "synictimer", "frequencies", "reenlightenment", "tlbflush", "ipi"}
)

// cpuLabels are the labels of what a node said of its CPUs. A node may be in others' hands: only known names become labels.
func cpuLabels(told hostcpu.Told, config *v1.KubeVirtConfiguration) map[string]string {
	const yes = "true"
	want := map[string]string{}
	for _, model := range told.Models {
		if !v1.KnownCPUModel(model) {
			continue
		}
		if !config.IsObsoleteCPUModel(model) {
			want[v1.CPUModelLabel+model] = yes
		}
		want[v1.MigrationCPUModelLabel+model] = yes
	}
	if m := told.HostModel; v1.KnownCPUModel(m) {
		want[v1.HostCPUModelLabel+m], want[v1.MigrationCPUModelLabel+m] = yes, yes
	}
	for prefix, names := range map[string][]string{v1.CPUFeatureLabel: told.Features, v1.HostCPUFeatureLabel: told.Required} {
		for _, name := range names {
			if resolve.KnownCPUFeature(name) {
				want[prefix+name] = yes
			}
		}
	}
	if slices.Contains(vendors, told.Vendor) {
		want[v1.CPUVendorLabel+told.Vendor] = yes
	}
	for _, name := range told.HyperV {
		if slices.Contains(hyperV, name) {
			want[v1.HyperVLabel+name] = yes
		}
	}
	if t := told.TSC; t != nil && v1.CheckTSC(t.Hertz) == nil {
		want[v1.TSCFrequencyLabel], want[v1.TSCScalableLabel] = strconv.FormatInt(t.Hertz, 10), strconv.FormatBool(t.Scalable)
	}
	return want
}

// maxFrequencies bounds the labels of frequencies that are neither the node's own nor of guests on the node.
const maxFrequencies = 32

// frequencies are those of TSCs that guests have or may get.
type frequencies struct {
	guests map[string][]int64 // of the guests of each node
	others []int64            // of all guests, and the lowest of the nodes, sorted
}

// tscLabels are the labels of those frequencies that a node with the labels own can give guests. Its own frequency and those of its
// guests have a label whatever others there are: without it a kubelet that restarts would end the guests.
func tscLabels(own map[string]string, node string, all frequencies) map[string]string {
	want := map[string]string{}
	hertz, scalable := v1.NodeTSC(own)
	if hertz == 0 {
		return want
	}
	label := func(f int64) {
		if v1.CheckTSC(f) == nil && v1.GivesTSC(hertz, scalable, f) {
			want[v1.GuestTSCLabel+strconv.FormatInt(f, 10)] = "true"
		}
	}
	label(hertz)
	for _, f := range all.guests[node] {
		label(f)
	}
	for most, i := len(want)+maxFrequencies, 0; i < len(all.others) && len(want) < most; i++ {
		label(all.others[i])
	}
	return want
}

// note adds the frequency of a guest on some nodes, of which some may be empty.
func (f *frequencies) note(hertz int64, nodes ...string) {
	for _, node := range nodes {
		if node != "" {
			f.guests[node] = append(f.guests[node], hertz)
		}
	}
	f.others = append(f.others, hertz)
}

// readTold reads what a node's Lease says of its CPUs; nil for a Lease that says nothing. What is said of another accelerator than
// the Lease's counts as an empty answer. A node without an accelerator takes no guests, and keeps the labels for those that run.
func readTold(annotations map[string]string) (*hostcpu.Told, error) {
	text := annotations[CPUKey]
	if text == "" {
		return nil, nil
	}
	told, err := hostcpu.ReadTold(text)
	if err != nil {
		return nil, fmt.Errorf("read the annotation %s: %w", CPUKey, err)
	}
	if now := annotations[AcceleratorKey]; now != told.Accelerator && (now == "kvm" || now == "tcg") {
		return &hostcpu.Told{}, nil
	}
	return &told, nil
}

// isOurs says whether a label of nodes is virt-controller's.
func isOurs(key string) bool {
	return slices.Contains([]string{v1.SchedulableLabel, AcceleratorKey, v1.CPUManagerLabel, v1.OldCPUManagerLabel, v1.RealtimeLabel, v1.PasstLabel}, key) || v1.IsCPULabel(key)
}
