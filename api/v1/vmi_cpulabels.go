package v1

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Labels of nodes that say which CPUs a node can give guests, with KubeVirt's names. After each but TSCFrequencyLabel
// and TSCScalableLabel comes the name of what the node can give, and their values are "true".
const (
	// CPUModelLabel is of a CPU model that is not obsolete, and MigrationCPUModelLabel of each.
	CPUModelLabel          = "cpu-model.node.kubevirt.io/"
	MigrationCPUModelLabel = "cpu-model-migration.node.kubevirt.io/"
	// CPUFeatureLabel is of a CPU feature, by QEMU's name.
	CPUFeatureLabel = "cpu-feature.node.kubevirt.io/"
	// HostCPUModelLabel is of the model that comes nearest to the node's own, and HostCPUFeatureLabel of what the node's own has
	// besides.
	HostCPUModelLabel   = "host-model-cpu.node.kubevirt.io/"
	HostCPUFeatureLabel = "host-model-required-features.node.kubevirt.io/"
	CPUVendorLabel      = "cpu-vendor.node.kubevirt.io/"
	// HyperVLabel is of an interface of Hyper-V.
	HyperVLabel = "hyperv.node.kubevirt.io/"
	// TSCFrequencyLabel is the frequency of the node's time stamp counter, in Hz, and TSCScalableLabel says whether guests can have
	// another.
	CPUTimerLabel     = "cpu-timer.node.kubevirt.io/"
	TSCFrequencyLabel = CPUTimerLabel + "tsc-frequency"
	TSCScalableLabel  = CPUTimerLabel + "tsc-scalable"
	// GuestTSCLabel is of a frequency that guests have or may get, and that the node can give.
	GuestTSCLabel = "scheduling.node.kubevirt.io/tsc-frequency-"
	// SkipNodeAnnotation of a node, with the value true, leaves the labels above as they are.
	SkipNodeAnnotation = "node-labeller.kubevirt.io/skip-node"
)

// CPULabels returns the beginnings of all labels that say which CPUs a node can give.
func CPULabels() []string {
	return []string{CPUModelLabel, MigrationCPUModelLabel, CPUFeatureLabel, HostCPUModelLabel, HostCPUFeatureLabel,
		CPUVendorLabel, HyperVLabel, CPUTimerLabel, GuestTSCLabel}
}

// IsCPULabel reports whether a label says which CPUs a node can give.
func IsCPULabel(key string) bool {
	return slices.ContainsFunc(CPULabels(), func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// obsoleteCPUModels are those of a KubeVirt object that names none: KubeVirt's.
var obsoleteCPUModels = []string{
	"486", "486-v1", "pentium", "pentium-v1", "pentium2", "pentium2-v1", "pentium3", "pentium3-v1", "pentiumpro",
	"pentiumpro-v1", "coreduo", "coreduo-v1", "n270", "n270-v1", "core2duo", "core2duo-v1", "Conroe", "Conroe-v1",
	"athlon", "athlon-v1", "phenom", "phenom-v1", "qemu64", "qemu64-v1", "qemu32", "qemu32-v1", "kvm64", "kvm64-v1",
	"kvm32", "kvm32-v1", "Opteron_G1", "Opteron_G1-v1", "Opteron_G2", "Opteron_G2-v1",
}

// IsObsoleteCPUModel reports whether nodes are not to be labelled with a CPU model.
func (c *KubeVirtConfiguration) IsObsoleteCPUModel(model string) bool {
	if c == nil || c.ObsoleteCPUModels == nil {
		return slices.Contains(obsoleteCPUModels, model)
	}
	return c.ObsoleteCPUModels[model]
}

// MinimumTSC returns the least frequency of the TSC, in Hz, of a guest that needs a frequency of its own; 0 for none.
func (c *KubeVirtConfiguration) MinimumTSC() int64 {
	if c == nil || c.DeveloperConfiguration == nil || c.DeveloperConfiguration.MinimumClusterTSCFrequency == nil {
		return 0
	}
	return *c.DeveloperConfiguration.MinimumClusterTSCFrequency
}

// Modes of a CPU model that are no QEMU model.
const (
	HostModel       = "host-model"
	HostPassthrough = "host-passthrough"
)

// NamedModel returns the CPU model that a guest's node must have; empty for the node's own.
func (c *CPU) NamedModel() string {
	if c == nil || c.Model == HostModel || c.Model == HostPassthrough {
		return ""
	}
	return c.Model
}

// hypervLabel is an interface of Hyper-V with a label of nodes.
type hypervLabel struct {
	on   bool
	name string
}

// HyperVNeeds returns the interfaces of Hyper-V that the guest's node must have, by the names of the nodes' labels.
// QEMU has the others without the kernel.
func (d *DomainSpec) HyperVNeeds() (out []string) {
	if d.Features == nil || d.Features.Hyperv == nil {
		return nil
	}
	h := d.Features.Hyperv
	for _, l := range []hypervLabel{
		{h.VPIndex.Is(), "vpindex"}, {h.Runtime.Is(), "runtime"}, {h.Reset.Is(), "reset"}, {h.SyNIC.Is(), "synic"},
		{h.SyNICTimer.Is(), "synictimer"}, {h.Frequencies.Is(), "frequencies"}, {h.Reenlightenment.Is(), "reenlightenment"},
		{h.TLBFlush.Is(), "tlbflush"}, {h.IPI.Is(), "ipi"},
	} {
		if l.on {
			out = append(out, l.name)
		}
	}
	return out
}

// TopologyHints are what the guest's node must be like.
type TopologyHints struct {
	// TSCFrequency is the frequency of the guest's time stamp counter, in Hz. Every node that can give the guest this frequency has
	// a label with it.
	// +optional
	TSCFrequency *int64 `json:"tscFrequency,omitempty"`
}

// NeedsTSCFrequency reports whether the guest can move only with a TSC that has a frequency of its own.
func (d *DomainSpec) NeedsTSCFrequency() bool {
	if d.Features != nil && d.Features.Hyperv != nil && d.Features.Hyperv.Reenlightenment.Is() {
		return true
	}
	return d.invtsc() >= 0
}

// invtsc returns the index of the feature by which the guest has an invariant TSC; -1 for none.
func (d *DomainSpec) invtsc() int {
	if d.CPU == nil {
		return -1
	}
	return slices.IndexFunc(d.CPU.Features, func(f CPUFeature) bool {
		return f.QEMUName() == invariantTSC && f.Policy != FeatureDisable && f.Policy != FeatureForbid
	})
}

// TSCFrequency returns the frequency of the guest's TSC, in Hz; 0 for the node's own.
func (vmi *VirtualMachineInstance) TSCFrequency() int64 {
	if hints := vmi.Status.TopologyHints; hints != nil && hints.TSCFrequency != nil &&
		vmi.Spec.Domain.NeedsTSCFrequency() {
		return *hints.TSCFrequency
	}
	return 0
}

// Bounds of the frequency of a TSC, in Hz.
const (
	minTSC = 900_000_000 // x86 servers have 1 GHz or more, and a measured frequency may be a little less
	maxTSC = 10_000_000_000
)

// CheckTSC reports whether a number can be the frequency of a TSC.
func CheckTSC(hertz int64) error {
	if hertz < minTSC || hertz > maxTSC {
		return fmt.Errorf("no frequency of a TSC: %d", hertz)
	}
	return nil
}

// NearTSC reports whether a TSC of one frequency can be that of a guest with the other, in Hz: KVM takes a difference
// of 250 parts in a million for none (arch/x86/kvm/x86.c, tsc_tolerance_ppm).
func NearTSC(a, b int64) bool {
	const millionth = 250
	return max(a-b, b-a)*1_000_000 <= millionth*a
}

// GivesTSC reports whether a node whose TSC has the frequency hertz can give a guest another frequency, in Hz.
func GivesTSC(hertz int64, scalable bool, guest int64) bool {
	return NearTSC(hertz, guest) || scalable && guest <= hertz
}

// NodeTSC reads the frequency of a node's TSC in the node's labels; 0 for a node that tells none.
func NodeTSC(labels map[string]string) (hertz int64, scalable bool) {
	hertz, err := strconv.ParseInt(labels[TSCFrequencyLabel], 10, 64)
	if err != nil || CheckTSC(hertz) != nil {
		return 0, false
	}
	return hertz, labels[TSCScalableLabel] == "true"
}
