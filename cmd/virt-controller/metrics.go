package main

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kubeqemu/kubeqemu/controllers/certificates"
	"github.com/kubeqemu/kubeqemu/monitoring"
)

// addMetrics has virt-controller serve its own metrics, and those that are known
// from the VMs' objects.
func addMetrics(mgr ctrl.Manager, o options, signer *certificates.Signer) error {
	if o.metrics == "0" {
		return nil
	}
	log := mgr.GetLogger().WithName("metrics")
	access, err := monitoring.NewAccess(mgr.GetConfig(), time.Now, log)
	if err != nil {
		return fmt.Errorf("set up access to metrics: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(monitoring.Up("virt_controller"))
	return mgr.Add(&monitoring.Server{Address: o.metrics, Certificate: signer.GetCertificate, Log: log,
		Handler: access.Guard(monitoring.Handler(prometheus.Gatherers{metrics.Registry, registry}))})
}
