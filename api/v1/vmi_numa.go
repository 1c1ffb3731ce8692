package v1

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// MapsNUMA reports whether the guest sees the host's NUMA nodes.
func (c *CPU) MapsNUMA() bool {
	return c != nil && c.NUMA != nil && c.NUMA.GuestMappingPassthrough != nil
}

var maskPart = regexp.MustCompile(`^(\^?)([0-9]{1,3})(?:-([0-9]{1,3}))?$`)

// CPUs returns those of a guest with n CPUs that the mask names, in order.
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
