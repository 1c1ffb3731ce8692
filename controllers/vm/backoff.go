package vm

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// KubeVirt's back-off: shortestBackOff times the square of the count, plus up to half of that,
// but never more than longestBackOff.
const (
	shortestBackOff = 10 * time.Second
	longestBackOff  = 300 * time.Second
)

// backOff returns the count of VMIs that failed before they ran, and when to try again. A VMI that ran, or that
// shut down in order, ends the counting. A strategy that does not start VMIs by itself has no back-off. In both
// cases backOff returns nil.
func backOff(old *v1.VirtualMachineStartFailure, strategy v1.VirtualMachineRunStrategy, vmi *v1.VirtualMachineInstance,
	now time.Time, jitter float64) *v1.VirtualMachineStartFailure {
	switch {
	case !restarts(strategy), vmi != nil && ran(vmi):
		return nil
	// A VMI that was deleted before it ran did not fail.
	case vmi == nil || vmi.Status.Phase != v1.Failed || vmi.DeletionTimestamp != nil:
		return old.DeepCopy()
	case old != nil && old.LastFailedVMIUID == vmi.UID:
		return old.DeepCopy()
	}
	count := 1
	if old != nil {
		count = old.ConsecutiveFailCount + 1
	}
	retry := metav1.NewTime(now.Add(delay(count, jitter)).Truncate(time.Second))
	return &v1.VirtualMachineStartFailure{ConsecutiveFailCount: count, LastFailedVMIUID: vmi.UID,
		RetryAfterTimestamp: &retry}
}

// restarts reports whether the strategy starts a guest by itself.
func restarts(s v1.VirtualMachineRunStrategy) bool {
	return s == v1.RunStrategyAlways || s == v1.RunStrategyRerunOnFailure || s == v1.RunStrategyOnce
}

func ran(vmi *v1.VirtualMachineInstance) bool {
	// virt-handler, which writes Running, may have been away while the guest ran.
	return vmi.Status.Phase == v1.Succeeded || slices.ContainsFunc(vmi.Status.PhaseTransitionTimestamps,
		func(t v1.PhaseTransitionTimestamp) bool { return t.Phase == v1.Running })
}

func delay(count int, jitter float64) time.Duration {
	// A higher count could overflow, and its back-off exceeds longestBackOff anyway.
	const most = int(longestBackOff / shortestBackOff)
	count = min(max(count, 1), most)
	d := shortestBackOff * time.Duration(count*count)
	return min(d+time.Duration(jitter*float64(d)/2), longestBackOff)
}

// delay puts a start off until the back-off is over. It does not put off a start with Once or Manual, as in
// KubeVirt, where a person asks for such a start.
func (p *plan) delay(strategy v1.VirtualMachineRunStrategy, now time.Time) {
	if p.startFailure == nil || p.startFailure.RetryAfterTimestamp == nil || strategy == v1.RunStrategyOnce {
		return
	}
	// A time further away than any back-off was written before the clock was set back.
	if left := p.startFailure.RetryAfterTimestamp.Sub(now); left > 0 && left <= longestBackOff {
		p.action, p.after = wait, left
	}
}
