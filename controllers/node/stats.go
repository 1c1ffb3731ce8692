package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	// statsPatience is how long a scrape waits for launchers, all at once. One
	// answers within milliseconds, and within launcher's statsTimeout if QEMU is silent.
	statsPatience = 3 * time.Second
	// statsShared is how old an answer may be that another scrape gets too: two
	// Prometheus servers wake a guest once.
	statsShared = time.Second
	// maxStats bounds an answer, in bytes. A disk takes 300, and a virtual CPU 100.
	maxStats = 128 << 10
)

// statsAnswer decodes no more than there can be to say.
type statsAnswer struct{ stats control.Stats }

func (a *statsAnswer) UnmarshalJSON(text []byte) error {
	if len(text) > maxStats {
		return fmt.Errorf("%w: statistics of %d bytes", control.ErrProtocol, len(text))
	}
	if err := json.Unmarshal(text, &a.stats); err != nil {
		return err
	}
	// An empty element, of two bytes on the line, takes fifty times as much here,
	// for as long as nobody asks again.
	if n := max(len(a.stats.VCPUs), len(a.stats.Disks), len(a.stats.NICs)); n > maxDevices {
		return fmt.Errorf("%w: statistics of %d devices", control.ErrProtocol, n)
	}
	return nil
}

// statsQuestion is asked once, however many wait for the answer.
type statsQuestion struct {
	done  chan struct{} // closed when the rest is set
	stats *control.Stats
	err   error
	at    time.Time
}

var errNoAnswer = errors.New("virt-launcher does not answer")

// stats asks the launcher, unless it still owes an answer, or gave one just now.
// An answer that comes late is for the next who asks.
func (s *session) stats(ctx context.Context) (*control.Stats, error) {
	s.mu.Lock()
	q := s.question
	if q == nil || q.stale() {
		q = &statsQuestion{done: make(chan struct{})}
		s.question = q
		go s.askStats(q)
	}
	s.mu.Unlock()
	select {
	case <-q.done:
		return q.stats, q.err
	case <-ctx.Done():
		return nil, errNoAnswer
	}
}

func (s *session) askStats(q *statsQuestion) {
	defer close(q.done)
	var answer statsAnswer
	q.err = s.call(context.Background(), control.CommandStats, nil, &answer)
	q.stats, q.at = &answer.stats, time.Now()
}

func (q *statsQuestion) stale() bool {
	select {
	case <-q.done:
		return time.Since(q.at) > statsShared
	default:
		return false
	}
}

// StatsCollector asks the launchers of this node's running guests, when somebody
// scrapes, and never else. Those that do not answer in time are left out and
// counted. It is a prometheus.Collector, and an unchecked one: the labels of a
// VMI are names of labels of its series.
type StatsCollector struct {
	Reconciler *Reconciler
	Log        logr.Logger

	series     series.VMIStats
	unanswered *prometheus.Desc
}

// NewStatsCollector makes a StatsCollector.
func NewStatsCollector(r *Reconciler, log logr.Logger) *StatsCollector {
	return &StatsCollector{Reconciler: r, Log: log, series: series.NewVMIStats(), unanswered: prometheus.NewDesc("kubeqemu_vmi_stats_unanswered",
		"Running guests whose virt-launcher did not say in time what they use: their series are missing.", []string{"node"}, nil)}
}

// Describe describes nothing: see StatsCollector.
func (*StatsCollector) Describe(chan<- *prometheus.Desc) {}

// Collect asks all launchers at once.
func (c *StatsCollector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statsPatience)
	defer cancel()
	var vmis v1.VirtualMachineInstanceList
	// They are only read.
	if err := c.Reconciler.Client.List(ctx, &vmis, client.UnsafeDisableDeepCopy); err != nil {
		c.Log.Error(err, "list VMIs for metrics")
		return
	}
	answers := make([]*control.Stats, len(vmis.Items))
	var asking sync.WaitGroup
	for i := range vmis.Items {
		launcher := c.Reconciler.launcher(&vmis.Items[i])
		if launcher == nil || vmis.Items[i].Status.Phase != v1.Running {
			continue
		}
		asking.Go(func() {
			stats, err := launcher.stats(ctx)
			if err != nil {
				c.Log.V(1).Info("a launcher gives no statistics", "pod", launcher.pod.String(), "reason", short(err.Error()))
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
