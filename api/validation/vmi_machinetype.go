package validation

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// validateMachineType refuses a type that is none of the architecture's.
func validateMachineType(name, architecture string, path *field.Path) field.ErrorList {
	switch {
	case architecture == v1.ARM64 && !virtType.MatchString(name):
		return field.ErrorList{field.Invalid(path, name, "must be virt or virt-X.Y, the machine types of arm64")}
	case architecture == v1.ARM64:
		return nil
	case !machineType.MatchString(name):
		return field.ErrorList{field.Invalid(path, name, "must be q35, pc-q35-X.Y or one of RHEL's, pc-q35-rhelX.Y.Z")}
	}
	return validateRHELMachine(name, path)
}

// validateRHELMachine refuses a machine type of a release of RHEL that is not known.
func validateRHELMachine(name string, path *field.Path) field.ErrorList {
	release, is := strings.CutPrefix(name, v1.RHELPrefix)
	known := v1.RHELReleases()
	if !is || slices.Contains(known, release) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, name,
		fmt.Sprintf("no QEMU is known that this type of RHEL's was made from; use q35, or a type of the releases %s",
			strings.Join(known, ", ")))}
}

// warnMachineType returns a warning where QEMU does not have a guest's machine type. The warning names the type that
// the guest gets.
func warnMachineType(m *v1.Machine, path *field.Path) []string {
	if m == nil || v1.UpstreamMachineType(m.Type) == m.Type {
		return nil
	}
	return []string{fmt.Sprintf("%s: %s runs as %s", path, m.Type, v1.UpstreamMachineType(m.Type))}
}

// permitsMachine reports whether a pattern matches a machine type, or its name without a version (q35 or virt),
// because a VM keeps the version of its first start. A pattern that matches a RHEL machine type permits every q35
// type, because RHEL's types run as q35 here. Without patterns every type is permitted.
func permitsMachine(patterns []string, machine string) bool {
	architecture := (&v1.Machine{Type: machine}).Architecture()
	names := []string{machine, v1.NewestMachineType(architecture)}
	if architecture == v1.AMD64 {
		for _, release := range v1.RHELReleases() {
			names = append(names, v1.RHELPrefix+release)
		}
	}
	for _, pattern := range patterns {
		for _, name := range names {
			if ok, err := path.Match(pattern, name); ok && err == nil {
				return true
			}
		}
	}
	return len(patterns) == 0
}
