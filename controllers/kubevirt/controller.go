package kubevirt

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// Reconciler writes the status of KubeVirts. Its client's caches hold all KubeVirts, and the
// components.
type Reconciler struct {
	Client client.Client
	Clock  clock.PassiveClock
}

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	all := handler.EnqueueRequestsFromMapFunc(r.requestAll)
	return ctrl.NewControllerManagedBy(mgr).
		Named("kubevirt").
		// Every change concerns all KubeVirts: when the KubeVirt in force is deleted, another
		// comes into force.
		Watches(&v1.KubeVirt{}, all).
		Watches(&appsv1.Deployment{}, all).
		Watches(&appsv1.DaemonSet{}, all).
		WithOptions(kit.Options(1)).
		Complete(r)
}

func (r *Reconciler) requestAll(ctx context.Context, _ client.Object) []reconcile.Request {
	var list v1.KubeVirtList
	if err := r.Client.List(ctx, &list); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list KubeVirts")
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// Reconcile brings the status of one KubeVirt up to date.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var list v1.KubeVirtList
	if err := r.Client.List(ctx, &list); err != nil {
		return ctrl.Result{}, fmt.Errorf("list KubeVirts: %w", err)
	}
	kv := &v1.KubeVirt{}
	if err := r.Client.Get(ctx, request.NamespacedName, kv); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := kv.DeepCopy()
	now := metav1.NewTime(r.Clock.Now())
	if inForce := v1.KubeVirtInForce(list.Items); inForce != nil && inForce.UID != kv.UID {
		refuse(kv, inForce, now)
	} else if err := r.report(ctx, kv, now); err != nil {
		return ctrl.Result{}, err
	}
	if equality.Semantic.DeepEqual(before.Status, kv.Status) {
		return ctrl.Result{}, nil
	}
	err := r.Client.Status().Patch(ctx, kv, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil && !apierrors.IsConflict(err) { // the other write brings us back
		return ctrl.Result{}, client.IgnoreNotFound(fmt.Errorf("write status: %w", err))
	}
	return ctrl.Result{}, nil
}

func (r *Reconciler) report(ctx context.Context, kv *v1.KubeVirt, now metav1.Time) error {
	deployment, err := r.deployment(ctx, v1.VirtController)
	if err != nil {
		return err
	}
	api, err := r.deployment(ctx, v1.VirtAPI)
	if err != nil {
		return err
	}
	daemonSet := &appsv1.DaemonSet{}
	err = r.Client.Get(ctx, client.ObjectKey{Namespace: v1.KubeVirtNamespace, Name: v1.VirtHandler}, daemonSet)
	if apierrors.IsNotFound(err) {
		daemonSet, err = nil, nil
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", v1.VirtHandler, err)
	}
	report(kv, deployment, api, daemonSet, now)
	return nil
}

// deployment returns the Deployment of a component, or nil.
func (r *Reconciler) deployment(ctx context.Context, name string) (*appsv1.Deployment, error) {
	d := &appsv1.Deployment{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: v1.KubeVirtNamespace, Name: name}, d)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", name, err)
	}
	return d, nil
}
