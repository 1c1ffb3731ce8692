package vm

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// KubeVirt's back-off: the shortest, times the square of the count, and up to
// half of that, but never more than the longest.
const (
	shortestBackOff = 10 * time.Second
	longestBackOff  = 300 * time.Second
)

// backOff counts VMIs that failed before they ran. One that ran, or was powered
// off, ends the counting; a strategy that does not start by itself needs none.
func backOff(old *v1.VirtualMachineStartFailure, strategy v1.VirtualMachineRunStrategy, vmi *v1.VirtualMachineInstance, now time.Time, jitter float64) *v1.VirtualMachineStartFailure {
	switch {
	case !restarts(strategy), vmi != nil && ran(vmi):
		return nil
	// One that was deleted before it ran did not fail.
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
	return &v1.VirtualMachineStartFailure{ConsecutiveFailCount: count, LastFailedVMIUID: vmi.UID, RetryAfterTimestamp: &retry}
}

// restarts says whether the strategy starts a guest by itself.
func restarts(s v1.VirtualMachineRunStrategy) bool {
	return s == v1.RunStrategyAlways || s == v1.RunStrategyRerunOnFailure || s == v1.RunStrategyOnce
}

func ran(vmi *v1.VirtualMachineInstance) bool {
	// virt-handler, who says Running, may have been away meanwhile.
	return vmi.Status.Phase == v1.Succeeded || slices.ContainsFunc(vmi.Status.PhaseTransitionTimestamps, func(t v1.PhaseTransitionTimestamp) bool { return t.Phase == v1.Running })
}

func delay(count int, jitter float64) time.Duration {
	// More would overflow, and is over the limit anyway.
	const most = int(longestBackOff / shortestBackOff)
	count = min(max(count, 1), most)
	d := shortestBackOff * time.Duration(count*count)
	return min(d+time.Duration(jitter*float64(d)/2), longestBackOff)
}

// delay puts a start off until the back-off is over. Once and Manual start at
// once, as in KubeVirt: there it was a person who asked.
func (p *plan) delay(strategy v1.VirtualMachineRunStrategy, now time.Time) {
	if p.startFailure == nil || p.startFailure.RetryAfterTimestamp == nil || strategy == v1.RunStrategyOnce {
		return
	}
	// What is further away than any back-off was written before the clock was set back.
	if left := p.startFailure.RetryAfterTimestamp.Sub(now); left > 0 && left <= longestBackOff {
		p.action, p.after = wait, left
	}
}
