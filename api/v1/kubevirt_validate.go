package v1

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// KubeVirtNamespace is the namespace of the components.
const KubeVirtNamespace = "kubevirt"

// ValidateKubeVirt returns every error of a KubeVirt at once, with exact paths.
// The schema refuses most of them before.
func ValidateKubeVirt(kv *KubeVirt) field.ErrorList {
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
			errs = append(errs, field.Invalid(m.path, m.text, "must be q35 or pc-q35-X.Y"))
		}
	}
	if config.MachineType != "" && amd64 != "" && config.MachineType != amd64 {
		errs = append(errs, field.Invalid(path.Child("machineType"), config.MachineType,
			fmt.Sprintf("must be the same as %s, which replaces it", amd64Path)))
	}
	if n := config.NetworkConfiguration; n != nil {
		bindings := []string{"bridge", "masquerade"}
		if b := n.NetworkInterface; b != "" && !slices.Contains(bindings, b) {
			errs = append(errs, field.NotSupported(path.Child("network", "defaultNetworkInterface"), b, bindings))
		}
	}
	return errs
}

// ValidateOnlyKubeVirt returns an error if a new KubeVirt is not the only one of the cluster.
func ValidateOnlyKubeVirt(kv *KubeVirt, others []KubeVirt) field.ErrorList {
	for i := range others {
		if other := &others[i]; other.Name != kv.Name || other.Namespace != kv.Namespace {
			return field.ErrorList{field.Forbidden(field.NewPath("metadata", "name"),
				fmt.Sprintf("KubeVirt is already created: a cluster has one, and there is %q in the namespace %q; change or delete that one", other.Name, other.Namespace))}
		}
	}
	return nil
}
