// Package node is virt-handler's reconciler of VMIs. It wires a launcher's network, has
// QEMU started, and writes what the launcher reports into the VMI's status. Package
// slots knows which launcher is in which pod, package sessions talks to launchers,
// package serve answers virt-api, and package accelerator chooses KVM or emulation.
package node

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/lookup"
	"github.com/kubeqemu/kubeqemu/controllers/node/migration"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/start"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Reconciler starts the VMs of one node and reports what their launchers say.
// Its client's cache holds only the VMIs of the node.
type Reconciler struct {
	Client client.Client
	// Live reads past the cache. It is read before a guest counts as one whose VMI is gone.
	Live     client.Reader
	Events   events.EventRecorder
	Clock    clock.PassiveClock
	NodeName string
	Sessions *sessions.Set
	// Starter starts the guests.
	Starter *start.Starter
	// Kernel gives guests the real-time scheduler. Nil gives nothing.
	Kernel Kernel
	// Changed brings the VMIs whose launchers reported something.
	Changed <-chan event.GenericEvent
	// Departures send guests to other nodes. Nil stands for a node that no guest leaves.
	Departures *migration.Departures

	writes    kit.Writes
	gathering gathering
	woken     chan event.GenericEvent
}

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1.VirtualMachineInstance{}, lookup.PodIndex, lookup.IndexByPod); err != nil {
		return fmt.Errorf("index VMIs by pod: %w", err)
	}
	r.woken = make(chan event.GenericEvent, accelerator.MaxSlots)
	return ctrl.NewControllerManagedBy(mgr).
		Named("node").
		For(&v1.VirtualMachineInstance{}).
		WatchesRawSource(source.Channel(r.Changed, &handler.EnqueueRequestForObject{})).
		WatchesRawSource(source.Channel(r.woken, &handler.EnqueueRequestForObject{})).
		// A launcher that does not answer holds one worker, and so delays no other VM.
		WithOptions(kit.Options(accelerator.MaxSlots)).
		Complete(r)
}

// Reconcile takes one VMI a step further, and then ends guests that earlier VMIs of the name have left.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	result, err := r.step(ctx, request)
	result.RequeueAfter = kit.Sooner(result.RequeueAfter, r.endStale(ctx, request.NamespacedName))
	return result, err
}

// step takes one VMI a step further. Where no launcher is connected, it says so in the
// status after a while, and does no more: absence of information is never death.
func (r *Reconciler) step(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	r.gathering.note(request.NamespacedName, false)
	r.wake(ctx, request.Namespace)
	object := &v1.VirtualMachineInstance{}
	if err := r.Client.Get(ctx, request.NamespacedName, object); err != nil {
		r.writes.Forget(request.NamespacedName)
		if len(r.Sessions.Of(request.NamespacedName)) == 0 { // a guest that comes is not in the cache yet
			r.Starter.Wiring.Forget(request.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.writes.Behind(object) {
		return ctrl.Result{RequeueAfter: kit.WriteDelay}, nil
	}
	launcher := r.session(object)
	if object.IsFinal() {
		return ctrl.Result{}, nil
	}
	if r.Departures != nil {
		r.Departures.StepLeft(object)
	}
	if launcher == nil {
		return r.withoutLauncher(ctx, object)
	}
	ips, err := wiring.Vouched(launcher, object)
	if err != nil {
		return r.refuse(ctx, object, err)
	}
	r.depart(object, launcher)
	before := object.DeepCopy()
	wait, startErr := r.advance(ctx, object, launcher)
	if wait > 0 && startErr == nil {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	if len(ips) == 0 && startErr == nil {
		return ctrl.Result{}, nil // the pod has no addresses yet; their change brings us back
	}
	again := kit.Sooner(r.setLinks(ctx, object, launcher), kit.Sooner(r.growDisks(ctx, object, launcher), r.holdPings(ctx, object, launcher)))
	now := metav1.NewTime(r.Clock.Now())
	report(object, launcher.State(), networkOf(launcher, object, ips), now)
	if agent := launcher.Agent(); agent == nil && withAgent(launcher.State()) {
		keepAgentReport(object, before)
	} else {
		reportAgent(object, ptr.Deref(agent, control.AgentReport{}), now)
	}
	reportSilence(object, before, launcher.State(), launcher.Silent(), now)
	reportTPM(object, launcher.State(), now)
	reportNUMA(object, now)
	again = kit.Sooner(again, r.speed(ctx, object, launcher, now))
	if startErr != nil {
		startFailed(object, startErr, now)
	}
	if err := r.writeStatus(ctx, before, object); err != nil {
		return ctrl.Result{}, err
	}
	r.announcePing(object, launcher)
	if errors.Is(startErr, control.ErrClosed) {
		return ctrl.Result{}, nil // the launcher's next hello brings us back
	}
	if startErr != nil { // the error goes to the log, and a launcher may make it as long as it likes
		return ctrl.Result{}, errors.New(control.Printable(startErr.Error(), maxMessage))
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// depart has a guest leave, if its VMI says so.
func (r *Reconciler) depart(vmi *v1.VirtualMachineInstance, launcher *sessions.Session) {
	if r.Departures != nil {
		r.Departures.Step(vmi, launcher)
	}
}

// withoutLauncher says in the status of a running VMI that it is not known whether the guest
// runs.
func (r *Reconciler) withoutLauncher(ctx context.Context, object *v1.VirtualMachineInstance) (ctrl.Result, error) {
	if object.Status.NodeName != r.NodeName || object.Status.Phase != v1.Running {
		return ctrl.Result{}, nil
	}
	if wait := gonePatience - r.Sessions.Gone(podOf(object)); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	before := object.DeepCopy()
	reportGone(object, notConnected, metav1.NewTime(r.Clock.Now()))
	return ctrl.Result{}, r.writeStatus(ctx, before, object)
}

// podOf is the name of the launcher pod that has the VMI's guest.
func podOf(object *v1.VirtualMachineInstance) types.NamespacedName {
	return types.NamespacedName{Namespace: object.Namespace, Name: object.LauncherPod()}
}

// writeStatus writes what has changed in a VMI's status, and makes events of it.
func (r *Reconciler) writeStatus(ctx context.Context, before, object *v1.VirtualMachineInstance) error {
	told := keepTerminating(before, object)
	if equality.Semantic.DeepEqual(before.Status, object.Status) {
		return nil
	}
	if err := kit.PatchStatus(ctx, r.Client, before, object); err != nil {
		return kit.IgnoreConflict(err)
	}
	r.writes.Note(before, object)
	r.announce(before, object, told)
	return nil
}

// keepTerminating leaves virt-controller's word in Ready that the launcher pod is being deleted, and adds what virt-handler says of the
// guest. It returns the condition as virt-handler says it, or nil.
func keepTerminating(before, object *v1.VirtualMachineInstance) *v1.VirtualMachineInstanceCondition {
	ready, old := object.Status.Condition(v1.ConditionReady), before.Status.Condition(v1.ConditionReady)
	if ready == nil || old == nil || old.Reason != v1.ReasonPodTerminating || ready.Reason == v1.ReasonPodTerminating {
		return ready
	}
	told := *ready
	*ready = v1.Terminating(&told)
	ready.LastTransitionTime = old.LastTransitionTime
	return &told
}
