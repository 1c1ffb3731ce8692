package admission

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func validateKubeVirt(kv, old *v1.KubeVirt, facts Facts) field.ErrorList {
	errs := v1.ValidateKubeVirt(kv)
	if hasOperatorFinalizer(kv) && !hasOperatorFinalizer(old) {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "finalizers"),
			v1.KubeVirtOperatorFinalizer+" says that KubeVirt's operator runs here, and virt-controller then stays idle: leave it out"))
	}
	if old == nil {
		errs = append(errs, v1.ValidateOnlyKubeVirt(kv, facts.KubeVirts)...)
	}
	return errs
}

// hasOperatorFinalizer reports whether a KubeVirt has the finalizer of KubeVirt's operator, as one that was read from KubeVirt's cluster has.
func hasOperatorFinalizer(kv *v1.KubeVirt) bool {
	return kv != nil && slices.Contains(kv.Finalizers, v1.KubeVirtOperatorFinalizer)
}
