package series

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Phases are histograms of how long VMIs took from phase to phase, and a counter of those whose guests' kernels panicked. The times are
// those in the status, which are in whole seconds.
type Phases struct {
	between, sinceCreation, sinceDeletion *prometheus.HistogramVec
	panics                                *panics
}

// NewPhases makes and registers the histograms and the counter.
func NewPhases(with prometheus.Registerer) *Phases {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help,
			Buckets: []float64{0.5, 1, 2, 5, 10, 20, 30, 40, 50, 60, 90, 120, 180, 300, 600, 1200, 1800, 3600}}, labels) // KubeVirt's
		with.MustRegister(h)
		return h
	}
	panics := newPanics()
	with.MustRegister(panics.counter)
	return &Phases{panics: panics,
		between:       histogram("kubevirt_vmi_phase_transition_time_seconds", "From one phase of a VirtualMachineInstance to the next.", "phase", "last_phase"),
		sinceCreation: histogram("kubevirt_vmi_phase_transition_time_from_creation_seconds", "From the creation of a VirtualMachineInstance to a phase.", "phase"),
		sinceDeletion: histogram("kubevirt_vmi_phase_transition_time_from_deletion_seconds", "From when the deletion of a VirtualMachineInstance was asked for to its final phase.", "phase"),
	}
}

// Observe takes an update of a VMI.
func (p *Phases) Observe(before, after *v1.VirtualMachineInstance) {
	phase, last := after.Status.Phase, before.Status.Phase
	entered, ok := enteredAt(after, phase)
	if phase == last || !ok {
		return
	}
	if hasPanicked(after) {
		p.panics.note(after)
	}
	created := after.CreationTimestamp.Time
	p.sinceCreation.WithLabelValues(string(phase)).Observe(between(created, entered))
	if deleted := after.DeletionTimestamp; deleted != nil && after.IsFinal() {
		p.sinceDeletion.WithLabelValues(string(phase)).Observe(between(deleted.Time, entered))
	}
	since := created // the first phase
	if last != "" {
		if since, ok = enteredAt(after, last); !ok {
			return
		}
	}
	p.between.WithLabelValues(string(phase), string(last)).Observe(between(since, entered))
}

func enteredAt(vmi *v1.VirtualMachineInstance, phase v1.VirtualMachineInstancePhase) (time.Time, bool) {
	for _, t := range vmi.Status.PhaseTransitionTimestamps {
		if t.Phase == phase {
			return t.PhaseTransitionTimestamp.Time, true
		}
	}
	return time.Time{}, false
}

// between is in seconds. It is at least 0: the clocks of two nodes may differ.
func between(from, to time.Time) float64 { return max(0, to.Sub(from).Seconds()) }
