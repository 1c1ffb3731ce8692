// Package series makes KubeVirt's metrics from what virt-controller and virt-handler know of
// VMs.
package series

import (
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// metric is one of KubeVirt's metrics, with KubeVirt's name.
type metric struct {
	name, help string
	kind       prometheus.ValueType
}

func counter(name, help string) metric { return metric{name, help, prometheus.CounterValue} }
func gauge(name, help string) metric   { return metric{name, help, prometheus.GaugeValue} }

// labels are pairs of a name and a value.
type labels []string

// send sends one series. It leaves out empty labels, which Prometheus treats like missing
// ones.
func (m metric) send(to chan<- prometheus.Metric, value float64, pairs ...labels) {
	fixed := prometheus.Labels{}
	for _, p := range pairs {
		for i := 0; i+1 < len(p); i += 2 {
			if p[i+1] != "" {
				fixed[p[i]] = p[i+1]
			}
		}
	}
	series, err := prometheus.NewConstMetric(prometheus.NewDesc(m.name, m.help, nil, fixed), m.kind, value)
	if err != nil {
		series = prometheus.NewInvalidMetric(prometheus.NewDesc(m.name, m.help, nil, nil), err)
	}
	to <- series
}

// maxVMILabels bounds how many labels a user can add to the series of a VMI.
const maxVMILabels = 32

// vmiLabels are the labels of all of virt-handler's series of a VMI: its node, namespace and
// name, and its own labels, as in KubeVirt.
func vmiLabels(vmi *v1.VirtualMachineInstance) labels {
	out := labels{"node", vmi.Status.NodeName, "namespace", vmi.Namespace, "name", vmi.Name}
	replace := strings.NewReplacer(".", "_", "/", "_", "-", "_")
	// Two keys may give the same name: the first in sorted order stays.
	seen := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(vmi.Labels)) {
		name := "kubernetes_vmi_label_" + replace.Replace(key)
		if seen[name] {
			continue
		}
		if len(seen) == maxVMILabels {
			break
		}
		seen[name] = true
		out = append(out, name, vmi.Labels[key])
	}
	return out
}
