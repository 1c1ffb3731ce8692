package nodelabel

import (
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
		if !resolve.KnownCPUModel(model) {
			continue
		}
		if !config.IsObsoleteCPUModel(model) {
			want[v1.CPUModelLabel+model] = yes
		}
		want[v1.MigrationCPUModelLabel+model] = yes
	}
	if m := told.HostModel; resolve.KnownCPUModel(m) {
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

// maxFrequencies bounds the labels of frequencies. Guests get the lowest frequency of the nodes of their time, so that there are few.
const maxFrequencies = 32

// tscLabels are the labels of those frequencies that a node with the labels own can give guests. The frequencies are those of guests and of nodes.
func tscLabels(own map[string]string, frequencies []int64) map[string]string {
	want := map[string]string{}
	hertz, scalable := v1.NodeTSC(own)
	if hertz == 0 {
		return want
	}
	for _, f := range frequencies {
		if len(want) < maxFrequencies && v1.CheckTSC(f) == nil && (near(hertz, f) || scalable && f <= hertz) {
			want[v1.GuestTSCLabel+strconv.FormatInt(f, 10)] = "true"
		}
	}
	return want
}

// near says whether a TSC of one frequency can be that of a guest with the other: KVM takes a difference of 250 parts in a million
// for none (arch/x86/kvm/x86.c, tsc_tolerance_ppm).
func near(a, b int64) bool {
	const millionth = 250
	return abs(a-b)*1_000_000 <= millionth*a
}

func abs(a int64) int64 { return max(a, -a) }

// frequencies are those that guests have or may get, the lowest first, without repetitions.
func frequencies(guests, nodes []int64) []int64 {
	out := slices.Clone(guests)
	if len(nodes) > 0 {
		out = append(out, slices.Min(nodes))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// readTold reads what a node's Lease says of its CPUs. nil stands for a Lease that says nothing, or what cannot be read.
func readTold(annotations map[string]string) *hostcpu.Told {
	text := annotations[CPUKey]
	if text == "" {
		return nil
	}
	told, err := hostcpu.ReadTold(text)
	if err != nil {
		return nil
	}
	return &told
}

// isOurs says whether a label of nodes is virt-controller's.
func isOurs(key string) bool {
	return slices.Contains([]string{v1.SchedulableLabel, AcceleratorKey, v1.CPUManagerLabel, v1.OldCPUManagerLabel, v1.RealtimeLabel}, key) || v1.IsCPULabel(key)
}
