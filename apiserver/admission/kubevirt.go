package admission

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func validateKubeVirt(kv, old *v1.KubeVirt, facts Facts) field.ErrorList {
	errs := v1.ValidateKubeVirt(kv)
	if old == nil {
		errs = append(errs, v1.ValidateOnlyKubeVirt(kv, facts.KubeVirts)...)
	}
	return errs
}
