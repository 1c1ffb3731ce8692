// Package instancetypes creates the well-known cluster-wide instancetypes and preferences
// (api/instancetype/wellknown) when the KubeVirt object asks for them, and deletes them again. It
// touches only objects that virt-controller created. Nothing watches these objects or keeps them in
// memory.
package instancetypes

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// period is how often the objects are compared again, while they are to be there.
const period = time.Hour

// Reconciler creates and deletes the well-known instancetypes and preferences.
type Reconciler struct {
	// Client's cache holds all KubeVirts.
	Client client.Client
	// Live reads past the cache.
	Live  client.Reader
	Clock clock.PassiveClock
	// ByDefault is what holds if no KubeVirt object says whether the objects are to be there:
	// create them, or leave all as it is.
	ByDefault bool
}

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("common-instancetypes").
		// The status does not count, for the reconciler writes it. There is one request, for the
		// whole cluster: any KubeVirt may come into force when another is deleted.
		Watches(&v1.KubeVirt{}, handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} }),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// Perhaps there is no KubeVirt.
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			queue.Add(reconcile.Request{})
			return nil
		})).
		WithOptions(kit.Options(1)).
		Complete(r)
}

// Reconcile brings the objects, and the condition of the KubeVirt in force, up to date.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	var list v1.KubeVirtList
	if err := r.Client.List(ctx, &list); err != nil {
		return ctrl.Result{}, fmt.Errorf("list KubeVirts: %w", err)
	}
	enabled := v1.ClusterConfiguration(list.Items).CommonInstancetypes()
	if enabled == nil && r.ByDefault {
		enabled = ptr.To(true)
	}
	var done outcome
	var failure error
	var result ctrl.Result
	if enabled != nil {
		if done, failure = r.bring(ctx, *enabled); *enabled {
			result.RequeueAfter = period
		}
	}
	if kv := v1.KubeVirtInForce(list.Items); kv != nil {
		if err := r.report(ctx, kv, enabled, done, failure); err != nil {
			return ctrl.Result{}, err
		}
	}
	if failure != nil {
		return ctrl.Result{}, failure
	}
	return result, nil
}

// report writes the condition of the KubeVirt in force. If nobody says whether the objects are to be
// there, the KubeVirt has no such condition.
func (r *Reconciler) report(ctx context.Context, kv *v1.KubeVirt, enabled *bool, done outcome, failure error) error {
	before := kv.DeepCopy()
	if enabled == nil {
		kv.Status.RemoveCondition(v1.KubeVirtConditionCommonInstancetypesDeployed)
	} else {
		kv.Status.SetCondition(done.condition(*enabled, failure), metav1.NewTime(r.Clock.Now()))
	}
	if equality.Semantic.DeepEqual(before.Status, kv.Status) {
		return nil
	}
	// The lock: a merge patch replaces all conditions, and those of the components are written by
	// another controller. After a conflict the whole is done again.
	err := r.Client.Status().Patch(ctx, kv, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}
