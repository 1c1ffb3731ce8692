package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

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
	// gatherLook is between two looks.
	gatherLook = 100 * time.Millisecond
)

// advance starts a guest, or lets it go where it is held, when it is time. It returns
// how long to wait until then.
func (r *Reconciler) advance(ctx context.Context, object *v1.VirtualMachineInstance, launcher *sessions.Session) (time.Duration, error) {
	waiting := toStart(object, launcher)
	if !waiting && !heldBack(object, launcher.State()) {
		return 0, nil
	}
	wait, err := r.gather(ctx, launcher)
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
	if r.Clock.Since(launcher.Since) >= gatherMost {
		return 0, nil
	}
	var vmis v1.VirtualMachineInstanceList
	// Only those of its namespace: a tenant whose guests never come, for want of an
	// image, say, delays nobody else's.
	if err := r.Client.List(ctx, &vmis, client.InNamespace(launcher.Pod.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return 0, err
	}
	now := r.Clock.Now()
	comes := func(o v1.VirtualMachineInstance) bool {
		other := r.session(&o)
		return other != launcher && onItsWay(&o, r.NodeName, now) && (other == nil || other.Preparing())
	}
	if !slices.ContainsFunc(vmis.Items, comes) {
		return 0, nil
	}
	return gatherLook, nil
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
