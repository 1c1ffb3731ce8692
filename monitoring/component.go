package monitoring

import "github.com/prometheus/client_golang/prometheus"

// Up says that a component, such as virt_handler, is there: who serves metrics is ready.
func Up(component string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubevirt_" + component + "_ready_status", Help: "1 while the component serves."}, func() float64 { return 1 })
}
