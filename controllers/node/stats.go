package node

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/series"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

const (
	// statsPatience is how long a scrape waits for all launchers together. A launcher answers
	// within milliseconds, and within the launcher's statsTimeout if QEMU is silent.
	statsPatience = 3 * time.Second
)

// StatsCollector asks the launchers of this node's running guests at each scrape, and at no
// other time. Launchers that do not answer in time are left out and counted. It is an
// unchecked prometheus.Collector: the labels of a VMI become labels of its series, so that
// their names are not known beforehand.
type StatsCollector struct {
	Reconciler *Reconciler
	Log        logr.Logger

	patience   time.Duration // statsPatience, except in tests
	series     series.VMIStats
	unanswered *prometheus.Desc
}

// NewStatsCollector makes a StatsCollector.
func NewStatsCollector(r *Reconciler, log logr.Logger) *StatsCollector {
	unanswered := prometheus.NewDesc("kubeqemu_vmi_stats_unanswered",
		"Running guests whose virt-launcher did not say in time what they use: their series are missing.",
		[]string{"node"}, nil)
	return &StatsCollector{Reconciler: r, Log: log, patience: statsPatience, series: series.NewVMIStats(),
		unanswered: unanswered}
}

// Describe describes nothing: see StatsCollector.
func (*StatsCollector) Describe(chan<- *prometheus.Desc) {}

// Collect asks all launchers at once.
func (c *StatsCollector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), c.patience)
	defer cancel()
	var vmis v1.VirtualMachineInstanceList
	// UnsafeDisableDeepCopy is safe here: the VMIs are only read.
	if err := c.Reconciler.Client.List(ctx, &vmis, client.UnsafeDisableDeepCopy); err != nil {
		c.Log.Error(err, "list VMIs for metrics")
		return
	}
	answers := make([]*control.Stats, len(vmis.Items))
	var asking sync.WaitGroup
	for i := range vmis.Items {
		launcher := c.Reconciler.Launcher(&vmis.Items[i])
		if launcher == nil || vmis.Items[i].Status.Phase != v1.Running {
			continue
		}
		asking.Go(func() {
			stats, err := launcher.Stats(ctx)
			if err != nil {
				c.Log.V(1).Info("a launcher gives no statistics", "pod", launcher.Pod.String(), "reason",
					control.Short(err.Error()))
				return
			}
			answers[i] = stats
		})
	}
	asking.Wait()
	unanswered := 0
	for i, stats := range answers {
		switch vmi := &vmis.Items[i]; {
		case stats != nil:
			c.series.Send(to, vmi, stats)
		case vmi.Status.Phase == v1.Running:
			unanswered++
		}
	}
	to <- prometheus.MustNewConstMetric(c.unanswered, prometheus.GaugeValue, float64(unanswered), c.Reconciler.NodeName)
}
