package replicaset

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/group"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// minLife is the least age at which a VMI that ended is replaced. Without it, a guest that
// ends at once would be replaced without pause.
const minLife = 10 * time.Second

// claims say which VMIs of a namespace are a ReplicaSet's, and which change hands.
type claims struct {
	owned   []*v1.VirtualMachineInstance
	adopt   []*v1.VirtualMachineInstance // without controller, and matched by the selector
	release []*v1.VirtualMachineInstance // owned, and no longer matched
}

// claim sorts the VMIs of a namespace. A ReplicaSet that is being deleted adopts and releases
// none: its VMIs are left to the garbage collector.
func claim(rs *v1.VirtualMachineInstanceReplicaSet, selector labels.Selector, vmis []*v1.VirtualMachineInstance) claims {
	var c claims
	for _, vmi := range vmis {
		owned, matches := controls(rs, vmi), selector.Matches(labels.Set(vmi.Labels))
		switch {
		case owned && (matches || rs.DeletionTimestamp != nil):
			c.owned = append(c.owned, vmi)
		case owned:
			c.release = append(c.release, vmi)
		case matches && metav1.GetControllerOf(vmi) == nil && vmi.DeletionTimestamp == nil && rs.DeletionTimestamp == nil:
			c.adopt = append(c.adopt, vmi)
		}
	}
	return c
}

// controls says whether the ReplicaSet is the VMI's controller.
func controls(rs *v1.VirtualMachineInstanceReplicaSet, vmi *v1.VirtualMachineInstance) bool {
	return owner.Controls(v1.VirtualMachineInstanceReplicaSetGroupVersionKind.GroupKind(), rs, vmi)
}

// plan is what brings a ReplicaSet to its number of VMIs.
type plan struct {
	create int
	delete []*v1.VirtualMachineInstance
	// again is when to reconcile again without an event; 0 for never.
	again time.Duration
}

// maxSkew is how far this clock may be behind the API server's. An object from further in the
// future was made before this clock was set back.
const maxSkew = 5 * time.Minute

// endedEarly says whether a VMI that has ended is too young to be replaced.
func endedEarly(vmi *v1.VirtualMachineInstance, now time.Time) bool {
	age := now.Sub(vmi.CreationTimestamp.Time)
	return age < minLife && age > -maxSkew
}

func (p plan) acts() bool { return p.create > 0 || len(p.delete) > 0 }

// scale plans for the VMIs that a ReplicaSet owns. VMIs that ended are deleted and replaced.
// VMIs that are being deleted do not count.
func scale(want int, owned []*v1.VirtualMachineInstance, now time.Time) plan {
	var p plan
	var active, fresh []*v1.VirtualMachineInstance
	for _, vmi := range owned {
		switch {
		case vmi.DeletionTimestamp != nil:
		case isActive(vmi):
			active = append(active, vmi)
		case vmi.IsFinal() && endedEarly(vmi, now):
			fresh = append(fresh, vmi)
		default:
			p.delete = append(p.delete, vmi)
		}
	}
	// A VMI that ended too early keeps its place until minLife, if the ReplicaSet has a place
	// for it.
	slices.SortFunc(fresh, func(a, b *v1.VirtualMachineInstance) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	kept := min(len(fresh), max(want-len(active), 0))
	p.delete = append(p.delete, fresh[kept:]...)
	if kept > 0 {
		p.again = minLife - now.Sub(fresh[0].CreationTimestamp.Time)
	}
	if surplus := len(active) - want; surplus > 0 {
		slices.SortFunc(active, expendableFirst)
		p.delete = append(p.delete, active[:surplus]...)
	}
	running := 0
	var starting []time.Time
	for _, vmi := range active {
		if vmi.Status.Phase == v1.Running {
			running++
		} else {
			starting = append(starting, vmi.CreationTimestamp.Time)
		}
	}
	wanted := want - len(active) - kept
	waited, again := group.Starting(starting, now)
	if p.create = group.Room(wanted, running, waited); p.create < wanted && again > 0 && (p.again == 0 || again < p.again) {
		p.again = again
	}
	p.delete = p.delete[:min(len(p.delete), group.Burst)]
	return p
}

// isActive says whether a VMI counts: it has not ended, and neither it nor its pod is being
// deleted.
func isActive(vmi *v1.VirtualMachineInstance) bool {
	if ready := vmi.Status.Condition(v1.ConditionReady); ready != nil && ready.Status == metav1.ConditionFalse && ready.Reason == v1.ReasonPodTerminating {
		return false
	}
	return !vmi.IsFinal() && vmi.DeletionTimestamp == nil
}

func isReady(vmi *v1.VirtualMachineInstance) bool {
	ready := vmi.Status.Condition(v1.ConditionReady)
	return ready != nil && ready.Status == metav1.ConditionTrue
}

// expendableFirst orders VMIs for deletion: first those that are not ready, by how far they
// got, then the newest.
func expendableFirst(a, b *v1.VirtualMachineInstance) int {
	return cmp.Or(
		cmp.Compare(progress(a), progress(b)),
		b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
		cmp.Compare(b.Name, a.Name),
	)
}

// progress is the rank of a VMI's phase; a ready VMI has the highest.
func progress(vmi *v1.VirtualMachineInstance) int {
	if isReady(vmi) {
		return len(phases)
	}
	return slices.Index(phases, vmi.Status.Phase)
}

var phases = []v1.VirtualMachineInstancePhase{"", v1.Pending, v1.Scheduling, v1.Scheduled, v1.Running}
