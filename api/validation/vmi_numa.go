package validation

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// validateNUMA applies KubeVirt's rules, in KubeVirt's words: NUMA nodes need CPUs and memory of their own, and the
// real-time scheduler needs NUMA nodes. Memory that is plugged would be of no node.
func validateNUMA(d *v1.DomainSpec, path *field.Path) field.ErrorList {
	c, dedicated := d.CPU, path.Child("cpu", "dedicatedCpuPlacement")
	numa, realtime := path.Child("cpu", "numa", "guestMappingPassthrough"), path.Child("cpu", "realtime")
	var errs field.ErrorList
	if c.MapsNUMA() {
		needs := func(need *field.Path, must string) {
			errs = append(errs, field.Forbidden(numa,
				fmt.Sprintf("%s must be %s when NUMA topology strategy is set in %s", need, must, numa)))
		}
		if !c.DedicatedCPUPlacement {
			needs(dedicated, "set to true")
		}
		if d.Memory.Hugepages == nil {
			needs(path.Child("memory", "hugepages"), "requested")
		}
		if d.Memory.MaxGuest != nil {
			errs = append(errs, field.Forbidden(path.Child("memory", "maxGuest"),
				"Memory hotplug is not compatible with guest mapping passthrough"))
		}
	}
	if c.Realtime == nil {
		return errs
	}
	if !c.DedicatedCPUPlacement {
		errs = append(errs, field.Required(dedicated,
			fmt.Sprintf("%s must be set to true when %s is used", dedicated, realtime)))
	}
	if !c.MapsNUMA() {
		errs = append(errs, field.Required(numa, fmt.Sprintf("%s must be defined when %s is used", numa, realtime)))
	}
	if n := c.VCPUs(); n > 0 && n <= v1.MaxVCPUs {
		if _, err := c.Realtime.CPUs(int(n)); err != nil {
			errs = append(errs, field.Invalid(realtime.Child("mask"), c.Realtime.Mask, err.Error()))
		}
	}
	return errs
}
