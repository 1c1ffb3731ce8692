package admission

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
)

func validateKubeVirt(kv, old *v1.KubeVirt, facts Facts) field.ErrorList {
	errs := validation.ValidateKubeVirt(kv)
	if old == nil {
		if hasOperatorFinalizer(kv) { // of an object that was read from another cluster: an operator gives it to one that is there
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "finalizers"), operatorFinalizerSays))
		}
		errs = append(errs, validation.ValidateOnlyKubeVirt(kv, facts.KubeVirts)...)
	}
	return errs
}

const operatorFinalizerSays = v1.KubeVirtOperatorFinalizer + " says that KubeVirt's operator runs here, and virt-controller then stays idle: leave it out"

// hasOperatorFinalizer reports whether a KubeVirt has the finalizer of KubeVirt's operator, as one that was read from KubeVirt's cluster has.
func hasOperatorFinalizer(kv *v1.KubeVirt) bool {
	return slices.Contains(kv.Finalizers, v1.KubeVirtOperatorFinalizer)
}
