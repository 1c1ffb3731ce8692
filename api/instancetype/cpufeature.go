package instancetype

import (
	"slices"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// applyCPUFeatures adds the features that the template does not name.
func applyCPUFeatures(p *v1beta1.CPUPreferences, d *v1.DomainSpec) {
	if p == nil || len(p.PreferredCPUFeatures) == 0 {
		return
	}
	if d.CPU == nil {
		d.CPU = &v1.CPU{}
	}
	own := d.CPU.Features
	for _, f := range p.PreferredCPUFeatures {
		if !slices.ContainsFunc(own, func(o v1.CPUFeature) bool { return o.QEMUName() == f.QEMUName() }) {
			d.CPU.Features = append(d.CPU.Features, f)
		}
	}
}
