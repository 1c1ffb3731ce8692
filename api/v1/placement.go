package v1

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// GuestHostname is the guest's name for cloud-init and DHCP: the spec's hostname, or the first
// label of the object's name.
func (vmi *VirtualMachineInstance) GuestHostname() string {
	if vmi.Spec.Hostname != "" {
		return vmi.Spec.Hostname
	}
	const limit = 63 // of a DNS label, and below Linux's 64
	label, _, _ := strings.Cut(vmi.Name, ".")
	return strings.TrimRight(label[:min(len(label), limit)], "-")
}

// validateEvictedName refuses a name that does not fit into the name of a launcher pod whose eviction
// may be refused: an eviction names only the pod.
func validateEvictedName(spec *VirtualMachineInstanceSpec, name string) field.ErrorList {
	if s := spec.EvictionStrategy; s == nil || !s.Refuses() || len(name) <= MaxWholeName {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), name,
		fmt.Sprintf("must have no more than %d characters with evictionStrategy %s", MaxWholeName, *spec.EvictionStrategy))}
}

// validatePlacement checks what becomes part of the pod. Some of it only the API server can
// judge, such as affinities: it refuses them when the pod is made.
func validatePlacement(spec *VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	label := func(name, value string) {
		if value == "" {
			return
		}
		for _, message := range validation.IsDNS1123Label(value) {
			errs = append(errs, field.Invalid(path.Child(name), value, message))
		}
	}
	label("hostname", spec.Hostname)
	label("subdomain", spec.Subdomain)
	if name := spec.ServiceAccountName; name != "" {
		for _, message := range validation.IsDNS1123Subdomain(name) {
			errs = append(errs, field.Invalid(path.Child("serviceAccountName"), name, message))
		}
	}
	errs = append(errs, oneOf(spec.StartStrategy, path.Child("startStrategy"), "", StartStrategyPaused)...)
	if s := spec.EvictionStrategy; s != nil {
		errs = append(errs, oneOf(*s, path.Child("evictionStrategy"), EvictionStrategyNone, EvictionStrategyLiveMigrate, EvictionStrategyLiveMigrateIfPossible, EvictionStrategyExternal)...)
	}
	errs = append(errs, oneOf(spec.DNSPolicy, path.Child("dnsPolicy"), "", corev1.DNSClusterFirst,
		corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault, corev1.DNSNone)...)
	if spec.DNSPolicy == corev1.DNSNone && (spec.DNSConfig == nil || len(spec.DNSConfig.Nameservers) == 0) {
		errs = append(errs, field.Required(path.Child("dnsConfig", "nameservers"), "dnsPolicy None needs at least one name server"))
	}
	return errs
}
