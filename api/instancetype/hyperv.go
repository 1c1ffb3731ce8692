package instancetype

import (
	"reflect"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// applyHyperv sets each of Hyper-V's interfaces that the template does not name. A template that passes its node's
// interfaces through has them all.
func applyHyperv(preferred *v1.FeatureHyperv, f *v1.Features) {
	if preferred == nil || f.HypervPassthrough.Is() {
		return
	}
	if f.Hyperv == nil {
		f.Hyperv = &v1.FeatureHyperv{}
	}
	from, to := reflect.ValueOf(preferred.DeepCopy()).Elem(), reflect.ValueOf(f.Hyperv).Elem()
	for i := range to.NumField() {
		if to.Field(i).IsNil() {
			to.Field(i).Set(from.Field(i))
		}
	}
}
