package node

import (
	"context"
	"fmt"
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

// Guests of a namespace that come to a node at the same time begin to run at the same
// time. A guest that runs takes all CPU time that there is, so that each start after
// it takes longer: where many come, after a power cut say, the last is up much sooner
// if the first waits for the others. QEMU is started meanwhile, with the guest's
// CPUs stopped: the guest is held. A guest that comes alone waits for nobody.
const (
	// gatherMost is how long a launcher that is ready waits for others at most.
	gatherMost = 5 * time.Second
	// gatherYoung is how long after its creation a VMI is waited for: one whose
	// image cannot be pulled, say, holds up nobody.
	gatherYoung = 30 * time.Second
	// gatherLook is between two looks. The last guest to come wakes the others. A look
	// finds only a change that has no event: a VMI is not young any more.
	gatherLook = time.Second
)

// gathering is who waits for other guests. The zero value is ready for use.
type gathering struct {
	mu   sync.Mutex
	held map[types.NamespacedName]struct{}
}

// note keeps in mind whether a guest waits.
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

// wake has the guests of a namespace looked at that wait, if nobody comes any more that
// they wait for. An error is left to the next look.
func (r *Reconciler) wake(ctx context.Context, namespace string) {
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
			r.gathering.note(name, false) // if it still waits when it is looked at, it says so
		default: // full: those are looked at, and wake the others
		}
	}
}

// advance starts a guest, or lets it go where it is held, when it is time. It returns
// how long to wait until then.
func (r *Reconciler) advance(ctx context.Context, object *v1.VirtualMachineInstance, launcher *sessions.Session) (time.Duration, error) {
	name := client.ObjectKeyFromObject(object)
	waiting := toStart(object, launcher)
	if !waiting && !heldBack(object, launcher.State()) {
		r.gathering.note(name, false)
		return 0, nil
	}
	// Before it looks: who comes meanwhile finds it, and wakes it.
	r.gathering.note(name, true)
	wait, err := r.gather(ctx, launcher)
	r.gathering.note(name, err == nil && wait > 0)
	if err != nil {
		return 0, fmt.Errorf("look for other guests: %w", err)
	}
	switch {
	case waiting && wait > 0 && launcher.Has(control.CommandUnpause) == nil:
		return wait, r.start(ctx, object, launcher, true)
	case wait > 0:
		return wait, nil
	case waiting:
		return 0, r.start(ctx, object, launcher, false)
	}
	if err := launcher.Call(ctx, control.CommandUnpause, nil, nil); err != nil && heldBack(object, launcher.State()) {
		return 0, fmt.Errorf("let the guest run: %w", err)
	}
	return 0, nil
}

// heldBack says whether a guest is to be let go when it is time.
func heldBack(object *v1.VirtualMachineInstance, state control.StateReport) bool {
	return neverRan(object, state) && object.DeletionTimestamp == nil
}

// neverRan says whether a guest's QEMU is up and its CPUs have never run, though its user
// did not ask for that. A virt-handler that is restarted finds by this the guests that
// the last virt-handler held.
func neverRan(object *v1.VirtualMachineInstance, state control.StateReport) bool {
	return state.State == control.StatePaused && state.StartedAt == nil && object.Spec.StartStrategy != v1.StartStrategyPaused
}

// gather returns how long a launcher that is ready waits before it is asked about
// again; 0 to let its guest run.
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

// comes says whether a guest of a namespace, another than a launcher's, is on its way.
// Only its own namespace counts: a tenant whose guests never come, for want of an image,
// say, delays nobody else's.
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

// onItsWay says whether a VMI's pod was just bound to the node, and its launcher is
// to be expected. It is pure.
func onItsWay(object *v1.VirtualMachineInstance, node string, now time.Time) bool {
	if object.Status.NodeName != node || object.DeletionTimestamp != nil || now.Sub(object.CreationTimestamp.Time) > gatherYoung {
		return false
	}
	return object.Status.Phase == v1.Scheduling || object.Status.Phase == v1.Scheduled
}

// toStart says whether a launcher waits for a guest that is wanted.
func toStart(object *v1.VirtualMachineInstance, launcher *sessions.Session) bool {
	return launcher.State().State == control.StateWaiting && object.DeletionTimestamp == nil
}
