package series

import (
	"context"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
)

// DataVolumes makes series of the DataVolumes that virt-controller fills. It is a prometheus.Collector.
type DataVolumes struct {
	// List returns all of them, which the caller does not change; none while CDI fills DataVolumes.
	List func(context.Context) ([]cdi.DataVolume, error)
	Log  logr.Logger
}

// Describe describes nothing: see Objects.
func (*DataVolumes) Describe(chan<- *prometheus.Desc) {}

// Collect sends the series of all DataVolumes.
func (d *DataVolumes) Collect(to chan<- prometheus.Metric) {
	volumes, err := d.List(context.Background())
	if err != nil {
		d.Log.Error(err, "list DataVolumes for metrics")
		return
	}
	for i := range volumes {
		volume(to, &volumes[i])
	}
}

func volume(to chan<- prometheus.Metric, v *cdi.DataVolume) {
	who := labels{"namespace", v.Namespace, "name", v.Name}
	phase := string(v.Status.Phase)
	if phase == "" {
		phase = string(cdi.Pending)
	}
	gauge("kubeqemu_datavolume_info", "A DataVolume; always 1.").send(to, 1, who, labels{"phase", strings.ToLower(phase)})
	counter("kubeqemu_datavolume_restarts_total", "How often the import of a DataVolume failed and was tried again.").
		send(to, float64(v.Status.RestartCount), who)
	percent, err := strconv.ParseFloat(strings.TrimSuffix(string(v.Status.Progress), "%"), 64)
	if err != nil {
		return // nothing is known yet
	}
	gauge("kubeqemu_datavolume_filled_ratio", "How much of the disk of a DataVolume is filled, from 0 to 1.").send(to, percent/100, who)
}
