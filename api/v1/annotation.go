package v1

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// unsupportedAnnotations are KubeVirt's that change the guest, or run somebody
// else's program beside it: without them it would not be what was asked for.
// The schema cannot see them.
func unsupportedAnnotations() []string {
	return []string{
		"hooks.kubevirt.io/hookSidecars",
		"kubevirt.io/disablePCIHole64",
		"kubevirt.io/ignitiondata",
		"kubevirt.io/placePCIDevicesOnRootComplex",
	}
}

func validateAnnotations(annotations map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range unsupportedAnnotations() {
		if _, ok := annotations[name]; ok {
			errs = append(errs, field.Forbidden(path.Key(name), notSupported))
		}
	}
	return errs
}
