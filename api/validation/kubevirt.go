package validation

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// ValidateKubeVirt returns every error of a KubeVirt at once, with exact paths.
// The schema refuses most of them before.
func ValidateKubeVirt(kv *v1.KubeVirt) field.ErrorList {
	config, path := &kv.Spec.Configuration, field.NewPath("spec", "configuration")
	var errs field.ErrorList
	if m := config.CPUModel; m != "" && !cpuModel.MatchString(m) {
		errs = append(errs, field.Invalid(path.Child("cpuModel"), m, "must be letters, digits, '.', '_' and '-'"))
	}
	amd64, amd64Path := "", path.Child("architectureConfiguration", "amd64", "machineType")
	if a := config.ArchitectureConfiguration; a != nil && a.Amd64 != nil {
		amd64 = a.Amd64.MachineType
	}
	for _, m := range []struct {
		path *field.Path
		text string
	}{{path.Child("machineType"), config.MachineType}, {amd64Path, amd64}} {
		if m.text != "" && !machineType.MatchString(m.text) {
			errs = append(errs, field.Invalid(m.path, m.text, "must be q35, pc-q35-X.Y or one of RHEL's, pc-q35-rhelX.Y.Z"))
		}
		errs = append(errs, validateRHELMachine(m.text, m.path)...)
	}
	if a := config.ArchitectureConfiguration; a != nil && a.Arm64 != nil && a.Arm64.MachineType != "" &&
		!virtType.MatchString(a.Arm64.MachineType) {
		errs = append(errs, field.Invalid(path.Child("architectureConfiguration", "arm64", "machineType"),
			a.Arm64.MachineType, "must be virt or virt-X.Y"))
	}
	if config.MachineType != "" && amd64 != "" && config.MachineType != amd64 {
		errs = append(errs, field.Invalid(path.Child("machineType"), config.MachineType,
			fmt.Sprintf("must be the same as %s, which replaces it", amd64Path)))
	}
	errs = append(errs, validateWorkloadUpdates(kv.Spec.WorkloadUpdateStrategy,
		field.NewPath("spec", "workloadUpdateStrategy"))...)
	errs = append(errs, validateEmulatedMachines(config, path)...)
	errs = append(errs, validatePods(config, path)...)
	if n := config.NetworkConfiguration; n != nil {
		bindings := []string{"bridge", "masquerade"}
		if b := n.NetworkInterface; b != "" && !slices.Contains(bindings, b) {
			errs = append(errs, field.NotSupported(path.Child("network", "defaultNetworkInterface"), b, bindings))
		}
	}
	return errs
}

// validateEmulatedMachines refuses patterns that are none, and patterns that do not permit the
// default machine type: no guest could be created then.
func validateEmulatedMachines(config *v1.KubeVirtConfiguration, root *field.Path) field.ErrorList {
	var errs field.ErrorList
	check := func(patterns []string, at *field.Path) {
		for i, pattern := range patterns {
			if _, err := path.Match(pattern, ""); err != nil {
				errs = append(errs, field.Invalid(at.Index(i), pattern, err.Error()))
			}
		}
	}
	at := root.Child("emulatedMachines")
	check(config.EmulatedMachines, at)
	if a := config.ArchitectureConfiguration; a != nil && a.Amd64 != nil && len(a.Amd64.EmulatedMachines) > 0 {
		at = root.Child("architectureConfiguration", "amd64", "emulatedMachines")
		check(a.Amd64.EmulatedMachines, at)
	}
	places := map[string]*field.Path{
		v1.AMD64: at, v1.ARM64: root.Child("architectureConfiguration", "arm64", "emulatedMachines"),
	}
	if a := config.ArchitectureConfiguration; a != nil && a.Arm64 != nil {
		check(a.Arm64.EmulatedMachines, places[v1.ARM64])
	}
	for _, architecture := range v1.Architectures() {
		patterns := emulatedMachines(config, architecture)
		machine := cmp.Or(config.DefaultMachineType(architecture), v1.NewestMachineType(architecture))
		if !permitsMachine(patterns, machine) {
			errs = append(errs, field.Invalid(places[architecture], patterns,
				fmt.Sprintf("must permit the default machine type, %s; set machineType to another", machine)))
		}
	}
	return errs
}

// validatePods refuses what the API server would refuse of every launcher pod, and of every claim with a guest's state.
func validatePods(config *v1.KubeVirtConfiguration, root *field.Path) field.ErrorList {
	var errs field.ErrorList
	if d := config.DeveloperConfiguration; d != nil {
		at := root.Child("developerConfiguration", "nodeSelectors")
		for key, value := range d.NodeSelectors {
			for _, message := range v1.LabelProblems(key, value) {
				errs = append(errs, field.Invalid(at.Key(key), value, message))
			}
		}
	}
	if profile, below := config.NamedProfile(); !below {
		at := root.Child("seccompConfiguration", "virtualMachineInstanceProfile", "customProfile", "localhostProfile")
		errs = append(errs, field.Invalid(at, profile, "must be a path below the kubelet's folder of seccomp profiles"))
	}
	for _, name := range []struct{ child, value string }{
		{"defaultRuntimeClass", config.DefaultRuntimeClass}, {"vmStateStorageClass", config.VMStateStorageClass},
	} {
		if name.value == "" {
			continue
		}
		for _, message := range utilvalidation.IsDNS1123Subdomain(name.value) {
			errs = append(errs, field.Invalid(root.Child(name.child), name.value, message))
		}
	}
	if selector := config.AutoCPULimitNamespaceLabelSelector; selector != nil {
		if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			errs = append(errs, field.Invalid(root.Child("autoCPULimitNamespaceLabelSelector"),
				metav1.FormatLabelSelector(selector), err.Error()))
		}
	}
	if q := config.CPURequest; q != nil && q.Sign() <= 0 {
		errs = append(errs, field.Invalid(root.Child("cpuRequest"), q.String(), "must be more than 0"))
	}
	return errs
}

// ValidateOnlyKubeVirt returns an error if a new KubeVirt is not the only one of the cluster.
func ValidateOnlyKubeVirt(kv *v1.KubeVirt, others []v1.KubeVirt) field.ErrorList {
	for i := range others {
		if other := &others[i]; other.Name != kv.Name || other.Namespace != kv.Namespace {
			return field.ErrorList{field.Forbidden(field.NewPath("metadata", "name"),
				fmt.Sprintf("KubeVirt is already created: a cluster has one, and there is %q in the namespace %q; change or "+
					"delete that one", other.Name, other.Namespace))}
		}
	}
	return nil
}

func validateWorkloadUpdates(s *v1.WorkloadUpdateStrategy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s == nil {
		return nil
	}
	if n := s.BatchSize(); n < 0 {
		errs = append(errs, field.Invalid(path.Child("batchEvictionSize"), n, "must not be negative"))
	}
	if text := s.BatchEvictionInterval; text != "" {
		if d, err := time.ParseDuration(text); err != nil || d < 0 {
			errs = append(errs, field.Invalid(path.Child("batchEvictionInterval"), text, "must be a time such as 1m30s"))
		}
	}
	return errs
}
