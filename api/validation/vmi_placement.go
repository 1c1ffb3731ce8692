package validation

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// validateEvictedName refuses a name that does not fit into the name of a launcher pod whose eviction
// may be refused: an eviction names only the pod.
func validateEvictedName(spec *v1.VirtualMachineInstanceSpec, name string) field.ErrorList {
	if s := spec.EvictionStrategy; s == nil || !s.Refuses() || len(name) <= v1.MaxWholeName {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), name,
		fmt.Sprintf("must have no more than %d characters with evictionStrategy %s", v1.MaxWholeName,
			*spec.EvictionStrategy))}
}

// validatePlacement checks what becomes part of the pod. Some of it only the API server can
// judge, such as affinities: it refuses them when the pod is made.
func validatePlacement(spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	label := func(name, value string) {
		if value == "" {
			return
		}
		for _, message := range utilvalidation.IsDNS1123Label(value) {
			errs = append(errs, field.Invalid(path.Child(name), value, message))
		}
	}
	label("hostname", spec.Hostname)
	label("subdomain", spec.Subdomain)
	if name := spec.ServiceAccountName; name != "" {
		for _, message := range utilvalidation.IsDNS1123Subdomain(name) {
			errs = append(errs, field.Invalid(path.Child("serviceAccountName"), name, message))
		}
	}
	errs = append(errs, oneOf(spec.StartStrategy, path.Child("startStrategy"), "", v1.StartStrategyPaused)...)
	if s := spec.EvictionStrategy; s != nil {
		errs = append(errs, oneOf(*s, path.Child("evictionStrategy"), v1.EvictionStrategyNone, v1.EvictionStrategyLiveMigrate,
			v1.EvictionStrategyLiveMigrateIfPossible, v1.EvictionStrategyExternal)...)
	}
	errs = append(errs, oneOf(spec.DNSPolicy, path.Child("dnsPolicy"), "", corev1.DNSClusterFirst,
		corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault, corev1.DNSNone)...)
	if spec.DNSPolicy == corev1.DNSNone && (spec.DNSConfig == nil || len(spec.DNSConfig.Nameservers) == 0) {
		errs = append(errs, field.Required(path.Child("dnsConfig", "nameservers"),
			"dnsPolicy None needs at least one name server"))
	}
	return errs
}
