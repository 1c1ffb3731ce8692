package validation

import (
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func validateCPU(d *v1.DomainSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	c := d.CPU
	// In floating point, since three numbers of 32 bits overflow 64.
	if n := float64(c.Cores) * float64(c.Sockets) * float64(c.Threads); n < 1 || n > v1.MaxVCPUs {
		errs = append(errs, field.Invalid(path.Child("cpu"), n,
			fmt.Sprintf("cores × sockets × threads must be between 1 and %d", v1.MaxVCPUs)))
	}
	if !cpuModel.MatchString(c.Model) {
		errs = append(errs, field.Invalid(path.Child("cpu", "model"), c.Model, "must be letters, digits, '.', '_' and '-'"))
	}
	errs = append(errs, validateCPUFeatures(c.Features, path.Child("cpu", "features"))...)
	return append(errs, validateEVMCS(d, path)...)
}

var featurePolicies = []v1.FeaturePolicy{"", v1.FeatureForce, v1.FeatureRequire, v1.FeatureOptional, v1.FeatureDisable,
	v1.FeatureForbid}

// maxCPUFeatures bounds QEMU's argument.
const maxCPUFeatures = 256

// cpuFeatureName keeps out what has a meaning in QEMU's argument.
var cpuFeatureName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

func validateCPUFeatures(features []v1.CPUFeature, path *field.Path) field.ErrorList {
	if len(features) > maxCPUFeatures {
		return field.ErrorList{field.TooMany(path, len(features), maxCPUFeatures)}
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, f := range features {
		at, name := path.Index(i), f.QEMUName()
		switch {
		case !cpuFeatureName.MatchString(f.Name):
			errs = append(errs, field.Invalid(at.Child("name"), f.Name,
				"must be the name of a CPU feature, such as vmx: lower-case letters, digits, '.', '_' and '-'"))
		case seen[name]:
			errs = append(errs, field.Duplicate(at.Child("name"), f.Name))
		}
		seen[name] = true
		if !slices.Contains(featurePolicies, f.Policy) {
			errs = append(errs, field.NotSupported(at.Child("policy"), f.Policy, featurePolicies[1:]))
		}
	}
	return errs
}

// validateEVMCS refuses evmcs without the CPU feature that it needs.
func validateEVMCS(d *v1.DomainSpec, path *field.Path) field.ErrorList {
	if d.Features == nil || d.Features.Hyperv == nil || !d.Features.Hyperv.EVMCS.Is() {
		return nil
	}
	for i, f := range d.CPU.Features {
		if f.Name == v1.NestedVirtualization && f.Policy != "" && f.Policy != v1.FeatureRequire {
			at := path.Child("cpu", "features").Index(i).Child("policy")
			return field.ErrorList{field.Invalid(at, f.Policy,
				fmt.Sprintf("%s needs %s: set require", path.Child("features", "hyperv", "evmcs"), v1.NestedVirtualization))}
		}
	}
	return nil
}

// warnCPUModel names a model that no QEMU has: no node would take the guest.
func warnCPUModel(c *v1.CPU, architecture string, path *field.Path) []string {
	if c == nil || c.Model == "" || c.Model == v1.HostModel || c.Model == v1.HostPassthrough || architecture == v1.ARM64 ||
		v1.KnownCPUModel(c.Model) {
		return nil
	}
	return []string{fmt.Sprintf("%s: QEMU has no CPU model %s, so no node takes the guest", path, c.Model)}
}

// validateDedicated returns what is wrong with a guest that has CPUs to itself. The kubelet gives a container CPUs of
// its own only if the container's requests of CPU and memory are its limits, and the CPUs are a whole number.
func validateDedicated(d *v1.DomainSpec, path *field.Path) field.ErrorList {
	c := d.CPU
	var errs field.ErrorList
	if !c.Dedicated() {
		if c.IsolateEmulatorThread {
			errs = append(errs, field.Invalid(path.Child("cpu", "isolateEmulatorThread"), true,
				"should be only set in combination with dedicatedCpuPlacement"))
		}
		return errs
	}
	const with = " with cpu.dedicatedCpuPlacement"
	resources := path.Child("resources")
	invalid := func(kind string, name corev1.ResourceName, value, why string) {
		errs = append(errs, field.Invalid(resources.Child(kind).Key(string(name)), value, why+with))
	}
	if c.Threads > 2 {
		errs = append(errs, field.Invalid(path.Child("cpu", "threads"), c.Threads, "must not be more than 2"+with))
	}
	for kind, list := range map[string]v1.ResourceList{"requests": d.Resources.Requests, "limits": d.Resources.Limits} {
		if cpus, ok := list[corev1.ResourceCPU]; ok {
			switch {
			case cpus.MilliValue()%1000 != 0:
				invalid(kind, corev1.ResourceCPU, cpus.String(), "must be an integer")
			case cpus.Value() != c.VCPUs():
				invalid(kind, corev1.ResourceCPU, cpus.String(), fmt.Sprintf("must be cores × sockets × threads (%d)", c.VCPUs()))
			}
		}
		if memory, ok := list[corev1.ResourceMemory]; ok && d.Memory.Hugepages == nil && d.Memory.Guest != nil &&
			memory.Cmp(*d.Memory.Guest) < 0 {
			invalid(kind, corev1.ResourceMemory, memory.String(),
				fmt.Sprintf("must not be less than memory.guest (%s)", d.Memory.Guest.String()))
		}
	}
	request, requested := d.Resources.Requests[corev1.ResourceMemory]
	limit, limited := d.Resources.Limits[corev1.ResourceMemory]
	if requested && limited && !request.Equal(limit) {
		invalid("requests", corev1.ResourceMemory, request.String(),
			fmt.Sprintf("must be equal to limits (%s)", limit.String()))
	}
	return errs
}
