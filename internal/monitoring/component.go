package monitoring

import "github.com/prometheus/client_golang/prometheus"

// Up says that a component, such as virt_handler, is there: who serves metrics is ready.
func Up(component string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubevirt_" + component + "_ready_status", Help: "1 while the component serves."}, func() float64 { return 1 })
}

// Leading says whether this virt-controller is the one that works.
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
