package v1

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// unsupportedAnnotations are KubeVirt's annotations that change the guest, or run a third
// party's program beside it. To ignore them would give another guest than was asked for. The
// schema cannot see annotations.
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
