package validation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// isExtended reports whether a resource is neither one of Kubernetes' own nor huge pages: a device plugin advertises
// it. Kubernetes overcommits no such resource.
func isExtended(name corev1.ResourceName) bool {
	domain, _, qualified := strings.Cut(string(name), "/")
	return qualified && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") &&
		!v1.IsPluginResource(name)
}

func validateResources(d *v1.DomainSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, list := range []struct {
		name string
		of   v1.ResourceList
	}{{"requests", d.Resources.Requests}, {"limits", d.Resources.Limits}} {
		for name, q := range list.of {
			at := path.Child(list.name).Key(string(name))
			if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
				errs = append(errs, field.Forbidden(at,
					"the pod's huge pages are the guest's memory: set memory.hugepages.pageSize"))
			}
			if q.Sign() < 0 {
				errs = append(errs, field.Invalid(at, q.String(), "must not be negative"))
			} else if name == corev1.ResourceMemory && !within(q, 0, maxGuestMemory) {
				errs = append(errs, field.Invalid(at, q.String(), "must be at most 4Ei"))
			}
		}
	}
	for name, request := range d.Resources.Requests {
		limit, limited := d.Resources.Limits[name]
		at := path.Child("requests").Key(string(name))
		switch {
		case isExtended(name) && !limited:
			errs = append(errs, field.Required(path.Child("limits").Key(string(name)),
				"Kubernetes wants the limit of a device plugin's resource, equal to its request"))
		case isExtended(name) && request.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(at, request.String(),
				fmt.Sprintf("must be limits (%s): Kubernetes overcommits no device plugin's resource", limit.String())))
		case limited && request.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(at, request.String(),
				fmt.Sprintf("must not be more than limits (%s)", limit.String())))
		}
	}
	if memory, ok := d.Resources.Requests[corev1.ResourceMemory]; ok &&
		memory.Cmp(*resource.NewQuantity(minGuestMemory, resource.DecimalSI)) < 0 {
		errs = append(errs, field.Invalid(path.Child("requests").Key("memory"), memory.String(), "must be at least 1M"))
	}
	if limit, ok := d.Resources.Limits[corev1.ResourceMemory]; ok && d.Memory.Guest != nil && d.Memory.Hugepages == nil &&
		!d.CPU.Dedicated() && limit.Cmp(*d.Memory.Guest) < 0 {
		errs = append(errs, field.Invalid(path.Child("limits").Key("memory"), limit.String(),
			fmt.Sprintf("must not be less than the guest's memory (%s): the kernel would end the guest as it uses its memory",
				d.Memory.Guest)))
	}
	return errs
}

// within reports whether a quantity is neither below least nor above most. It compares without Quantity.Value, which is
// wrong beyond an int64.
func within(q resource.Quantity, least, most int64) bool {
	return q.Cmp(*resource.NewQuantity(least, resource.BinarySI)) >= 0 &&
		q.Cmp(*resource.NewQuantity(most, resource.BinarySI)) <= 0
}

// warnResources names the resources that have no effect.
func warnResources(d *v1.DomainSpec, path *field.Path) (out []string) {
	for _, list := range []struct {
		name string
		of   v1.ResourceList
	}{{"requests", d.Resources.Requests}, {"limits", d.Resources.Limits}} {
		for _, name := range slices.Sorted(maps.Keys(list.of)) {
			if v1.IsPluginResource(name) {
				out = append(out, fmt.Sprintf("%s has no effect: the launcher pod asks for the devices that it needs",
					path.Child(list.name).Key(string(name))))
			}
		}
	}
	return out
}
