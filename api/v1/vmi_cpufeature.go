package v1

import (
	"slices"
	"strings"
)

// CPUFeature is a feature of the guest's CPUs, beside those of the model (QEMU -cpu NAME=on, NAME=off).
type CPUFeature struct {
	// Name is QEMU's or libvirt's, such as vmx, sse4.1 or lahf_lm.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name"`
	// Policy is require (the guest has the feature, or does not start), optional and force (the guest has
	// the feature if its node has), disable or forbid (the guest does not have the feature). Default: require.
	// +optional
	// +kubebuilder:validation:Enum="";force;require;optional;disable;forbid
	Policy FeaturePolicy `json:"policy,omitempty"`
}

// FeaturePolicy says whether the guest has a CPU feature.
type FeaturePolicy string

// Policies, with libvirt's names.
const (
	FeatureForce    FeaturePolicy = "force"
	FeatureRequire  FeaturePolicy = "require"
	FeatureOptional FeaturePolicy = "optional"
	FeatureDisable  FeaturePolicy = "disable"
	FeatureForbid   FeaturePolicy = "forbid"
)

// The names of features that have a meaning of their own.
const (
	// NestedVirtualization is the name of Intel's.
	NestedVirtualization = "vmx"
	invariantTSC         = "invtsc"
)

// QEMUName returns QEMU's own name of the feature. Linux and libvirt write some names with underscores, and QEMU has
// further names for some features (target/i386/cpu.c, x86_cpu_initfn).
func (f CPUFeature) QEMUName() string {
	switch name := strings.ReplaceAll(f.Name, "_", "-"); name {
	case "sse3":
		return "pni"
	case "pclmuldq":
		return "pclmulqdq"
	case "sse4-1":
		return "sse4.1"
	case "sse4-2":
		return "sse4.2"
	case "xd":
		return "nx"
	case "ffxsr":
		return "fxsr-opt"
	case "i64":
		return "lm"
	default:
		return name
	}
}

// defaultEVMCS adds the CPU feature that evmcs needs. That is KubeVirt's default.
func defaultEVMCS(d *DomainSpec) {
	if d.Features == nil || d.Features.Hyperv == nil || !d.Features.Hyperv.EVMCS.Is() {
		return
	}
	if d.CPU == nil {
		d.CPU = &CPU{}
	}
	if !slices.ContainsFunc(d.CPU.Features, func(f CPUFeature) bool { return f.Name == NestedVirtualization }) {
		d.CPU.Features = append(d.CPU.Features, CPUFeature{Name: NestedVirtualization, Policy: FeatureRequire})
	}
}
