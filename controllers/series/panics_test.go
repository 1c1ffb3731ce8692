package series

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// ended is a VMI that ended for a reason, and the VMI as it ran.
func ended(name, reason string) (before, after *v1.VirtualMachineInstance) {
	before = &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}}
	before.Status.SetPhase(v1.Running, metav1.Unix(1, 0))
	after = before.DeepCopy()
	after.Status.SetPhase(v1.Failed, metav1.Unix(2, 0))
	after.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason}, metav1.Unix(2, 0))
	return before, after
}

// TestEachPanicCountsOnce: each panic counts once, other ends do not, and few guests are remembered.
func TestEachPanicCountsOnce(t *testing.T) {
	registry := prometheus.NewRegistry()
	phases := NewPhases(registry)
	counted := func() map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, family := range families {
			for _, m := range family.Metric {
				if family.GetName() == "kubevirt_vmi_guest_os_panic_total" {
					out[m.Label[0].GetValue()+" of "+m.Label[1].GetValue()] = m.Counter.GetValue()
				}
			}
		}
		return out
	}
	for range 2 {
		before, after := ended("web", "GuestPanicked")
		phases.Observe(before, after)
		phases.Observe(after, after) // nothing new
	}
	phases.Observe(ended("off", "GuestShutdown"))
	if got := counted(); len(got) != 1 || got["web of team-a"] != 2 {
		t.Errorf("after two panics of one guest: %v", got)
	}
	for i := range 2 * maxPanicked {
		phases.Observe(ended(fmt.Sprint("vm", i), "GuestPanicked"))
	}
	if got := counted(); len(got) != maxPanicked || len(phases.panics.last) != maxPanicked || got["web of team-a"] != 0 {
		t.Errorf("%d guests are counted, want %d; the guest whose panic was longest ago has %v", len(got), maxPanicked, got["web of team-a"])
	}
}
