package v1

import (
	"strings"
)

// GuestHostname returns the guest's name for cloud-init and DHCP: the spec's hostname, or the first
// label of the object's name.
func (vmi *VirtualMachineInstance) GuestHostname() string {
	if vmi.Spec.Hostname != "" {
		return vmi.Spec.Hostname
	}
	const limit = 63 // of a DNS label, and below Linux's 64
	label, _, _ := strings.Cut(vmi.Name, ".")
	return strings.TrimRight(label[:min(len(label), limit)], "-")
}
