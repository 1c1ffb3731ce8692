// Package pool keeps as many VirtualMachines as VirtualMachinePools ask for, and brings
// changes of their template to them.
//
// As in package replicaset, a reconcile plans from the cache. If there is something to do, it
// plans again from the API server's objects, and carries out only that plan. So it needs no
// memory of earlier steps.
package pool

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/group"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// Reconciler makes, changes and deletes the VirtualMachines of pools.
type Reconciler struct {
	Client client.Client
	// Live reads past the cache. It is read before a plan is carried out.
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.PassiveClock
}

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1beta1.VirtualMachinePool{}).
		Owns(&v1.VirtualMachine{}).
		WithOptions(kit.Options(4)).
		Complete(kit.Patient(r, r.Clock))
}

// +kubebuilder:rbac:groups=pool.kubevirt.io,resources=virtualmachinepools,verbs=get;list;watch
// +kubebuilder:rbac:groups=pool.kubevirt.io,resources=virtualmachinepools/status,verbs=patch
// +kubebuilder:rbac:groups=pool.kubevirt.io,resources=virtualmachinepools/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile takes one pool a step further, and writes its status once if it changed.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	pool := &v1beta1.VirtualMachinePool{}
	if err := r.Client.Get(ctx, request.NamespacedName, pool); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	vms, err := r.machines(ctx, r.Client, pool.Namespace)
	if err != nil {
		return ctrl.Result{}, err
	}
	mine := owned(pool, vms)
	report := func(found group.Found) (ctrl.Result, error) {
		reporter := group.Reporter{Client: r.Client, Events: r.Events, Resumed: "SuccessfulResume"}
		return reporter.Report(ctx, pool, found, metav1.NewTime(r.Clock.Now()))
	}
	if errs := v1beta1.Validate(pool); len(errs) > 0 {
		replicas, ready := count(mine)
		return report(group.Invalid(pool, replicas, ready, paused(pool), errs.ToAggregate()))
	}
	selector, err := metav1.LabelSelectorAsSelector(pool.Spec.Selector)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read selector: %w", err)
	}
	found := group.Found{Selector: selector.String(), Paused: paused(pool)}
	if !pool.Spec.Paused && pool.DeletionTimestamp == nil {
		if mine, found.Again, found.Failed, err = r.step(ctx, pool, vms); err != nil {
			return ctrl.Result{}, err
		}
	}
	found.Replicas, found.Ready = count(mine)
	return report(found)
}

// paused says what a reconcile leaves undone while spec.paused is set.
func paused(pool *v1beta1.VirtualMachinePool) string {
	if !pool.Spec.Paused {
		return ""
	}
	return "nothing is made, changed or deleted while spec.paused is set"
}

// count counts a pool's VirtualMachines that are not being deleted, and those of them
// whose guests run.
func count(mine []*v1.VirtualMachine) (replicas, ready int32) {
	for _, vm := range mine {
		if vm.DeletionTimestamp != nil {
			continue
		}
		replicas++
		if vm.Status.Ready {
			ready++
		}
	}
	return replicas, ready
}

// machines lists a namespace's VirtualMachines. The caller must not change them: they are
// shared with the cache.
func (r *Reconciler) machines(ctx context.Context, from client.Reader, namespace string) ([]*v1.VirtualMachine, error) {
	var list v1.VirtualMachineList
	if err := from.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list VirtualMachines: %w", err)
	}
	all := make([]*v1.VirtualMachine, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
	}
	return all, nil
}

// guests lists a namespace's VirtualMachineInstances from the cache. restart looks again at each guest that it restarts. The caller must not
// change them: they are shared with the cache.
func (r *Reconciler) guests(ctx context.Context, namespace string) (guests, error) {
	var list v1.VirtualMachineInstanceList
	if err := r.Client.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list VirtualMachineInstances: %w", err)
	}
	all := guests{}
	for i := range list.Items {
		all[list.Items[i].Name] = &list.Items[i]
	}
	return all, nil
}

// step plans from the cache. If there is something to do, it plans again from the API server's
// objects, and carries that out. It returns the pool's VirtualMachines as they were before, and when
// to look again without an event; 0 is never.
func (r *Reconciler) step(ctx context.Context, pool *v1beta1.VirtualMachinePool, vms []*v1.VirtualMachine) ([]*v1.VirtualMachine, time.Duration, *group.Failure, error) {
	revision, err := revision(pool)
	if err != nil {
		return nil, 0, nil, err
	}
	running, err := r.guests(ctx, pool.Namespace)
	if err != nil {
		return nil, 0, nil, err
	}
	if p := decide(pool, vms, running, revision, r.Clock.Now()); !p.acts() {
		return owned(pool, vms), p.again, nil, nil
	}
	live := &v1beta1.VirtualMachinePool{}
	err = r.Live.Get(ctx, client.ObjectKeyFromObject(pool), live)
	if client.IgnoreNotFound(err) != nil {
		return nil, 0, nil, fmt.Errorf("get VirtualMachinePool: %w", err)
	}
	vms, listErr := r.machines(ctx, r.Live, pool.Namespace)
	if listErr != nil {
		return nil, 0, nil, listErr
	}
	mine := owned(pool, vms)
	if err != nil || live.UID != pool.UID || live.Generation != pool.Generation || live.DeletionTimestamp != nil {
		return mine, 0, nil, nil // the cache is behind; its next event brings us back
	}
	p := decide(pool, vms, running, revision, r.Clock.Now())
	return mine, p.again, r.carryOut(ctx, pool, p, revision), nil
}
