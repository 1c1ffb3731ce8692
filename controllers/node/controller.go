// Package node is virt-handler's reconciler of VMIs. It looks (look.go), decides what is next for a VMI (decide.go), does it
// (act.go), and writes what the launcher reports into the VMI's status (write.go). Package slots knows which launcher is in
// which pod, and package sessions talks to launchers. Package start has them start QEMU, package wiring connects their
// networks, and package migration moves their guests. Package serve answers virt-api, and package accelerator chooses KVM
// or emulation.
package node

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
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
	index := mgr.GetFieldIndexer()
	err := index.IndexField(context.Background(), &v1.VirtualMachineInstance{}, lookup.PodIndex, lookup.IndexByPod)
	if err != nil {
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
	again, err := r.step(ctx, request.NamespacedName)
	return ctrl.Result{RequeueAfter: kit.Sooner(again, r.endStale(ctx, request.NamespacedName))}, err
}

// step takes one VMI a step further. It looks, decides, acts, and writes the status once. It returns when to look
// again, or 0.
func (r *Reconciler) step(ctx context.Context, name types.NamespacedName) (time.Duration, error) {
	// Others of the namespace may wait for what has changed here.
	r.wake(ctx, name)
	w, err := r.look(ctx, name)
	if err != nil {
		return 0, err
	}
	s := decide(w)
	r.act(ctx, w, &s)
	if err := r.write(ctx, w, &s); err != nil {
		return 0, err
	}
	return s.outcome()
}
