package migration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/lookup"
	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/start"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
)

// Arrivals receives the guests that come to this node from others. It reconciles the VMIs whose migration names
// this node as its target, and is the peers.Target of this node.
type Arrivals struct {
	Node *Node
	// Starter starts the QEMUs into which guests come.
	Starter *start.Starter
	// Coming is a cache of the VMIs whose last migration names this node as its target. Most of them are not in
	// the cache of Node's client, because their guests are on other nodes.
	Coming client.Reader
	// Address is where the virt-handlers of other nodes reach this virt-handler.
	Address string

	changed chan event.GenericEvent

	// synced is closed once Coming has been filled.
	synced chan struct{}

	mu      sync.Mutex
	offered map[types.UID]*arrival // by migration
	// preparing are the migrations whose offers are looked at.
	preparing map[types.UID]bool
}

// arrival is a guest that a source has offered.
type arrival struct {
	launcher *sessions.Session
	// opened are stateChannel, reception, and the disks' names, as far as the source has asked for them. It may ask for
	// each once.
	opened []string
	// disks are those that the source may copy.
	disks []string
	// refused is why QEMU did not let the guest run.
	refused string
	// silent is when QEMU first did not say whether it lets the guest run that has come with all of its memory.
	silent time.Time
}

var _ peers.Target = &Arrivals{}

// Setup registers the reconciler with a manager. coming is the cache that Coming reads.
func (a *Arrivals) Setup(mgr ctrl.Manager, coming cache.Cache) error {
	err := coming.IndexField(context.Background(), &v1.VirtualMachineInstance{}, lookup.PodIndex, lookup.IndexByPod)
	if err != nil {
		return fmt.Errorf("index VMIs by pod: %w", err)
	}
	a.changed, a.synced = make(chan event.GenericEvent, accelerator.MaxSlots), make(chan struct{})
	err = mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		if coming.WaitForCacheSync(ctx) {
			close(a.synced)
		}
		return nil
	}))
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("arrivals").
		WatchesRawSource(source.Kind(coming, &v1.VirtualMachineInstance{},
			&handler.TypedEnqueueRequestForObject[*v1.VirtualMachineInstance]{})).
		WatchesRawSource(source.Channel(a.changed, &handler.EnqueueRequestForObject{})).
		// A launcher that does not answer holds one worker, and so delays no other guest.
		WithOptions(kit.Options(accelerator.MaxSlots)).
		Complete(a)
}

// Notify queues the VMI that a launcher's guest is to come from, after the launcher has reported something. Before
// Coming is filled it does nothing: each VMI is queued as it arrives there.
func (a *Arrivals) Notify(ctx context.Context, pod types.NamespacedName) {
	select {
	case <-a.synced:
	default:
		return
	}
	var vmis v1.VirtualMachineInstanceList
	if err := a.Coming.List(ctx, &vmis, client.InNamespace(pod.Namespace),
		client.MatchingFields{lookup.PodIndex: pod.Name}); err != nil {
		ctrl.Log.Error(err, "find VMIs whose guests come")
		return
	}
	for i := range vmis.Items {
		select {
		case a.changed <- event.GenericEvent{Object: &vmis.Items[i]}:
		case <-ctx.Done():
		}
	}
}

// Reconcile takes one guest that comes to this node a step further. Each step depends only on the VMI's status and
// on what the launcher reports, so that a virt-handler that was restarted goes on where the last one was.
func (a *Arrivals) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	vmi := &v1.VirtualMachineInstance{}
	if err := a.Coming.Get(ctx, request.NamespacedName, vmi); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	m := vmi.Migration()
	if m == nil || m.TargetNode != a.Node.Name || vmi.IsFinal() {
		return ctrl.Result{}, nil
	}
	launcher, err := a.launcher(vmi)
	if why := a.refusal(vmi); why != "" && m.Decision == v1.DecisionTarget {
		err = a.giveBack(ctx, vmi, why)
		launcher = nil
	}
	if launcher == nil || err != nil {
		return ctrl.Result{}, over(err) // the launcher's hello, or the pod's address, brings us back
	}
	switch m.Decision {
	case "":
		err = a.undecided(ctx, vmi, launcher)
	case v1.DecisionTarget:
		err = a.decided(ctx, vmi, launcher)
	}
	return ctrl.Result{}, over(err)
}

// over drops the error of a migration that has ended.
func over(err error) error {
	if errors.Is(err, errOver) {
		return nil
	}
	return err
}

// launcher returns the launcher of the target pod, or nil while it is not connected, or its pod has no address yet.
func (a *Arrivals) launcher(vmi *v1.VirtualMachineInstance) (*sessions.Session, error) {
	pod := types.NamespacedName{Namespace: vmi.Namespace, Name: vmi.Status.MigrationState.TargetPod}
	launcher := a.Node.Sessions.Get(pod)
	if launcher == nil {
		return nil, nil
	}
	ips, err := wiring.Vouched(launcher, vmi)
	if err != nil || len(ips) == 0 {
		return nil, err
	}
	return launcher, nil
}
