package monitoring

import "github.com/prometheus/client_golang/prometheus"

// Up is a metric that is always 1: a component, such as virt_handler, that serves metrics is
// ready.
func Up(component string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubevirt_" + component + "_ready_status", Help: "1 while the component serves."}, func() float64 { return 1 })
}

// Leading is a metric: 1 if this virt-controller is elected, and so does the work.
func Leading(elected <-chan struct{}) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubevirt_virt_controller_leading_status", Help: "1 for the virt-controller that works, 0 for one that stands by."}, func() float64 {
		select {
		case <-elected:
			return 1
		default:
			return 0
		}
	})
}
