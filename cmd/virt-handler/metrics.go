package virthandler

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kubeqemu/kubeqemu/controllers/certificates"
	"github.com/kubeqemu/kubeqemu/controllers/node"
	"github.com/kubeqemu/kubeqemu/internal/monitoring"
)

// metricsPort is not KubeVirt's 8443: virt-handler uses the node's network, where ingress
// controllers often have that port.
const metricsPort = 8187

// addMetrics has virt-handler serve its own metrics, and those of the node's guests.
func addMetrics(mgr ctrl.Manager, o options, reconciler *node.Reconciler, source *certificates.Source) error {
	if o.metrics == "0" {
		return nil
	}
	log := mgr.GetLogger().WithName("metrics")
	access, err := monitoring.NewAccess(mgr.GetConfig(), time.Now, log)
	if err != nil {
		return fmt.Errorf("set up access to metrics: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(node.NewStatsCollector(reconciler, log), monitoring.Up("virt_handler"))
	return mgr.Add(&monitoring.Server{Address: o.metrics, Certificate: source.GetCertificate, Log: log,
		Handler: access.Guard(monitoring.Handler(prometheus.Gatherers{metrics.Registry, registry}))})
}
