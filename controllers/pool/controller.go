// Package pool keeps as many VirtualMachines as VirtualMachinePools ask for,
// and brings changes of their template to them.
//
// As in package replicaset, what is to be done is planned from the cache, and
// once more from what the API server says: only that is carried out. So nothing
// has to be remembered of what was done before.
package pool

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// Reconciler makes, changes and deletes the VirtualMachines of pools.
type Reconciler struct {
	Client client.Client
	// Live reads past the cache; it is asked before anything is done.
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
		Complete(r)
}

// +kubebuilder:rbac:groups=pool.kubevirt.io,resources=virtualmachinepools,verbs=get;list;watch
// +kubebuilder:rbac:groups=pool.kubevirt.io,resources=virtualmachinepools/status,verbs=patch
// +kubebuilder:rbac:groups=pool.kubevirt.io,resources=virtualmachinepools/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile takes one pool a step further, and writes its status once if it changed.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	pool := &v1beta1.VirtualMachinePool{}
	if err := r.Client.Get(ctx, request.NamespacedName, pool); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := pool.DeepCopy()
	vms, err := r.machines(ctx, r.Client, pool.Namespace)
	if err != nil {
		return ctrl.Result{}, err
	}
	mine := owned(pool, vms)
	if errs := v1beta1.Validate(pool); len(errs) > 0 {
		// Nothing is done, but what is there is counted. The selector may be what is wrong.
		summarize(pool, pool.Status.LabelSelector, mine, &failure{v1.ReasonInvalidSpec, errs.ToAggregate()}, r.now())
		return ctrl.Result{}, r.report(ctx, before, pool)
	}
	selector, err := metav1.LabelSelectorAsSelector(pool.Spec.Selector)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read selector: %w", err)
	}
	var failed *failure
	if !pool.Spec.Paused && pool.DeletionTimestamp == nil {
		if mine, failed, err = r.step(ctx, pool, vms); err != nil {
			return ctrl.Result{}, err
		}
	}
	var again time.Duration
	if failed != nil && (apierrors.IsConflict(failed.err) || apierrors.IsAlreadyExists(failed.err)) {
		// Somebody else wrote meanwhile: no failure, but what was planned is not done.
		failed, again = nil, time.Second
	}
	summarize(pool, selector.String(), mine, failed, r.now())
	if err := r.report(ctx, before, pool); err != nil {
		return ctrl.Result{}, err
	}
	if failed != nil {
		r.Events.Eventf(pool, nil, corev1.EventTypeWarning, failed.reason, strings.TrimPrefix(failed.reason, "Failed"), "%s", failed.err.Error())
		return ctrl.Result{}, failed.err
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

func (r *Reconciler) now() metav1.Time { return metav1.NewTime(r.Clock.Now()) }

// machines lists a namespace's VirtualMachines, which are not to be changed.
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

// step plans from the cache and, if there is something to do, anew from what the
// API server says; that it carries out. It returns the pool's VirtualMachines as
// they were before.
func (r *Reconciler) step(ctx context.Context, pool *v1beta1.VirtualMachinePool, vms []*v1.VirtualMachine) ([]*v1.VirtualMachine, *failure, error) {
	revision, err := revision(pool)
	if err != nil {
		return nil, nil, err
	}
	if !decide(pool, vms, revision).acts() {
		return owned(pool, vms), nil, nil
	}
	live := &v1beta1.VirtualMachinePool{}
	err = r.Live.Get(ctx, client.ObjectKeyFromObject(pool), live)
	if client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("get VirtualMachinePool: %w", err)
	}
	vms, listErr := r.machines(ctx, r.Live, pool.Namespace)
	if listErr != nil {
		return nil, nil, listErr
	}
	mine := owned(pool, vms)
	if err != nil || live.UID != pool.UID || live.Generation != pool.Generation || live.DeletionTimestamp != nil {
		return mine, nil, nil // the cache is behind; the event of what it misses brings us back
	}
	return mine, r.carryOut(ctx, pool, decide(pool, vms, revision), revision), nil
}

// report writes the status if it changed, and tells what it newly says.
func (r *Reconciler) report(ctx context.Context, before, pool *v1beta1.VirtualMachinePool) error {
	if equality.Semantic.DeepEqual(before.Status, pool.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, pool, patch); err != nil {
		if apierrors.IsConflict(err) {
			return nil // somebody else wrote; their write comes back as an event
		}
		return client.IgnoreNotFound(err)
	}
	r.announce(before, pool)
	return nil
}

func (r *Reconciler) announce(before, pool *v1beta1.VirtualMachinePool) {
	const paused, failure = v1beta1.VirtualMachinePoolReplicaPaused, v1beta1.VirtualMachinePoolReplicaFailure
	was, is := before.Status.Condition(paused), pool.Status.Condition(paused)
	switch {
	case was == nil && is != nil:
		r.Events.Eventf(pool, nil, corev1.EventTypeNormal, "SuccessfulPaused", "Pause", "Paused")
	case was != nil && is == nil:
		r.Events.Eventf(pool, nil, corev1.EventTypeNormal, "SuccessfulResume", "Resume", "Resumed")
	}
	was, is = before.Status.Condition(failure), pool.Status.Condition(failure)
	if is != nil && is.Reason == v1.ReasonInvalidSpec && (was == nil || was.Message != is.Message) {
		r.Events.Eventf(pool, nil, corev1.EventTypeWarning, v1.ReasonInvalidSpec, "Validate", "%s", is.Message)
	}
}
