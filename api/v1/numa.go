package v1

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// NUMA is the guest's NUMA topology.
type NUMA struct {
	// GuestMappingPassthrough gives the guest a NUMA node for each of the host's on which it has CPUs. It needs
	// dedicatedCpuPlacement and huge pages.
	// +optional
	GuestMappingPassthrough *NUMAGuestMappingPassthrough `json:"guestMappingPassthrough,omitempty"`
}

// NUMAGuestMappingPassthrough has no settings.
type NUMAGuestMappingPassthrough struct{}

// Realtime gives the threads of the guest's CPUs the kernel's real-time scheduler.
type Realtime struct {
	// Mask are the guest's CPUs that it is for, as in 0-3,^1. Default: all.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^(\^?[0-9]{1,3}(-[0-9]{1,3})?(,\^?[0-9]{1,3}(-[0-9]{1,3})?)*)?$`
	Mask string `json:"mask,omitempty"`
}

// MapsNUMA says whether the guest sees the host's NUMA nodes.
func (c *CPU) MapsNUMA() bool {
	return c != nil && c.NUMA != nil && c.NUMA.GuestMappingPassthrough != nil
}

var maskPart = regexp.MustCompile(`^(\^?)([0-9]{1,3})(?:-([0-9]{1,3}))?$`)

// CPUs are those of a guest with n CPUs that the mask names, in order.
func (r *Realtime) CPUs(n int) ([]int, error) {
	in := make([]bool, n)
	if r.Mask == "" {
		for i := range in {
			in[i] = true
		}
	}
	for part := range strings.SplitSeq(r.Mask, ",") {
		if r.Mask == "" {
			break
		}
		m := maskPart.FindStringSubmatch(part)
		if m == nil {
			return nil, fmt.Errorf("%q is no CPU and no range of CPUs", part)
		}
		first, _ := strconv.Atoi(m[2]) // three digits
		last := first
		if m[3] != "" {
			last, _ = strconv.Atoi(m[3])
		}
		if last < first || last >= n {
			return nil, fmt.Errorf("%q is not among the guest's CPUs 0 to %d", part, n-1)
		}
		for i := first; i <= last; i++ {
			in[i] = m[1] == ""
		}
	}
	var out []int
	for i, is := range in {
		if is {
			out = append(out, i)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%q names no CPU", r.Mask)
	}
	return slices.Clip(out), nil
}

// validateNUMA has KubeVirt's rules, in KubeVirt's words: NUMA nodes need CPUs and memory of their own, and the real-time scheduler needs NUMA
// nodes. Memory that is plugged would be of no node.
func validateNUMA(d *DomainSpec, path *field.Path) field.ErrorList {
	c, dedicated := d.CPU, path.Child("cpu", "dedicatedCpuPlacement")
	numa, realtime := path.Child("cpu", "numa", "guestMappingPassthrough"), path.Child("cpu", "realtime")
	var errs field.ErrorList
	if c.MapsNUMA() {
		needs := func(need *field.Path, must string) {
			errs = append(errs, field.Forbidden(numa, fmt.Sprintf("%s must be %s when NUMA topology strategy is set in %s", need, must, numa)))
		}
		if !c.DedicatedCPUPlacement {
			needs(dedicated, "set to true")
		}
		if d.Memory.Hugepages == nil {
			needs(path.Child("memory", "hugepages"), "requested")
		}
		if d.Memory.MaxGuest != nil {
			errs = append(errs, field.Forbidden(path.Child("memory", "maxGuest"), "Memory hotplug is not compatible with guest mapping passthrough"))
		}
	}
	if c.Realtime == nil {
		return errs
	}
	if !c.DedicatedCPUPlacement {
		errs = append(errs, field.Required(dedicated, fmt.Sprintf("%s must be set to true when %s is used", dedicated, realtime)))
	}
	if !c.MapsNUMA() {
		errs = append(errs, field.Required(numa, fmt.Sprintf("%s must be defined when %s is used", numa, realtime)))
	}
	if n := c.VCPUs(); n > 0 && n <= MaxVCPUs {
		if _, err := c.Realtime.CPUs(int(n)); err != nil {
			errs = append(errs, field.Invalid(realtime.Child("mask"), c.Realtime.Mask, err.Error()))
		}
	}
	return errs
}
