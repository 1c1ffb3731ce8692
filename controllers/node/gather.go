package node

import (
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Guests of a namespace that come to a node at the same time wait for each other. A guest that
// runs takes all CPU time that it can get, so that each later start takes longer. Where many
// guests come at once, after a power cut say, the last guest is up much sooner if the first
// waits. QEMU is started meanwhile, with the guest's CPUs stopped: the guest is held. A guest
// that comes alone does not wait.
const (
	// gatherMost is how long a ready launcher waits for other guests at most.
	gatherMost = 5 * time.Second
	// gatherYoung is the age up to which others wait for a VMI. An older VMI that is not up,
	// because its image cannot be pulled, say, holds up no other guest.
	gatherYoung = 30 * time.Second
	// gatherLook is the time between two looks at the other guests. The last guest to come
	// wakes those that wait. A look finds only a change that has no event: a VMI has outgrown
	// gatherYoung.
	gatherLook = time.Second
)

// gathering holds the names of the guests that wait for others. The zero value is ready for
// use.
type gathering struct {
	mu   sync.Mutex
	held map[types.NamespacedName]struct{}
}

// note notes whether a guest waits.
func (g *gathering) note(name types.NamespacedName, waits bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !waits {
		delete(g.held, name)
		return
	}
	if g.held == nil {
		g.held = map[types.NamespacedName]struct{}{}
	}
	g.held[name] = struct{}{}
}

// in returns the guests of a namespace that wait.
func (g *gathering) in(namespace string) []types.NamespacedName {
	g.mu.Lock()
	defer g.mu.Unlock()
	var names []types.NamespacedName
	for name := range g.held {
		if name.Namespace == namespace {
			names = append(names, name)
		}
	}
	return names
}

// wake enqueues the other waiting guests of a guest's namespace if no guest is on its way there any more. An
// error is left to the next look.
func (r *Reconciler) wake(ctx context.Context, guest types.NamespacedName) {
	namespace := guest.Namespace
	r.gathering.note(guest, false) // who waits on is noted again
	waiting := r.gathering.in(namespace)
	if len(waiting) == 0 {
		return
	}
	if comes, err := r.comes(ctx, namespace, nil); comes || err != nil {
		return
	}
	for _, name := range waiting {
		object := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
		select {
		case r.woken <- event.GenericEvent{Object: object}:
			r.gathering.note(name, false) // a guest that must wait on is noted again
		default: // full: the VMIs in the queue wake the others when they are reconciled
		}
	}
}

// lookAround finds out how long a guest that could run waits for the others of its namespace.
func (r *Reconciler) lookAround(ctx context.Context, w *world) {
	name, could := client.ObjectKeyFromObject(w.vmi), toStart(w.vmi, w.state) || heldBack(w.vmi, w.state)
	// Noted before the look: a guest that changes meanwhile then finds the note, and wakes
	// this one.
	r.gathering.note(name, could)
	if !could {
		return
	}
	w.wait, w.unknown = r.gather(ctx, w.launcher)
	r.gathering.note(name, w.unknown == nil && w.wait > 0)
}

// heldBack reports whether a guest is held, and is to run when it is time.
func heldBack(object *v1.VirtualMachineInstance, state control.StateReport) bool {
	return neverRan(object, state) && object.DeletionTimestamp == nil
}

// neverRan reports whether a guest's QEMU is up and its CPUs have never run, although its user did not ask for that.
// By this a restarted virt-handler finds the guests that the last virt-handler held.
func neverRan(object *v1.VirtualMachineInstance, state control.StateReport) bool {
	return state.State == control.StatePaused && state.StartedAt == nil &&
		object.Spec.StartStrategy != v1.StartStrategyPaused
}

// gather returns how long a ready launcher waits until the next look at the other guests, or 0
// if its guest may run.
func (r *Reconciler) gather(ctx context.Context, launcher *sessions.Session) (time.Duration, error) {
	left := gatherMost - r.Clock.Since(launcher.Since)
	if left <= 0 {
		return 0, nil
	}
	if comes, err := r.comes(ctx, launcher.Pod.Namespace, launcher); !comes || err != nil {
		return 0, err
	}
	return min(gatherLook, left), nil
}

// comes reports whether a guest of a namespace, other than the given launcher's, is on its way. Only guests of the
// same namespace count: a tenant whose guests never come, because their image is missing, say, must not delay other
// tenants.
func (r *Reconciler) comes(ctx context.Context, namespace string, launcher *sessions.Session) (bool, error) {
	var vmis v1.VirtualMachineInstanceList
	if err := r.Client.List(ctx, &vmis, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return false, err
	}
	now := r.Clock.Now()
	return slices.ContainsFunc(vmis.Items, func(o v1.VirtualMachineInstance) bool {
		if !onItsWay(&o, r.NodeName, now) {
			return false
		}
		other := r.session(&o)
		return other == nil || other != launcher && other.Preparing()
	}), nil
}

// onItsWay reports whether a VMI's pod was just bound to the node, so that its launcher should soon connect. It is
// pure.
func onItsWay(object *v1.VirtualMachineInstance, node string, now time.Time) bool {
	if object.Status.NodeName != node || object.DeletionTimestamp != nil ||
		now.Sub(object.CreationTimestamp.Time) > gatherYoung {
		return false
	}
	return object.Status.Phase == v1.Scheduling || object.Status.Phase == v1.Scheduled
}

// toStart reports whether a launcher waits to start a guest, and the VMI is not being deleted. A guest that runs, or
// ran, is never started a second time.
func toStart(object *v1.VirtualMachineInstance, state control.StateReport) bool {
	return state.State == control.StateWaiting && object.DeletionTimestamp == nil && object.Status.Phase != v1.Running
}
