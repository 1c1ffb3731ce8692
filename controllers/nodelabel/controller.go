package nodelabel

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// Reconciler labels nodes. Its requests name nodes.
type Reconciler struct {
	// Client reads from caches that hold virt-handlers' Leases, and the part of nodes that
	// Trim keeps.
	Client client.Client
	// Live reads past the cache. It is read before a virt-handler counts as gone.
	Live  client.Reader
	Clock clock.PassiveClock

	heard map[string]heard // by node; without lock, for there is one worker
}

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.heard = map[string]heard{}
	return ctrl.NewControllerManagedBy(mgr).
		Named("nodelabel").
		// Only the node's metadata is watched: its status changes all the time.
		WatchesMetadata(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(requestForLease)).
		WithOptions(kit.Options(1)).
		Complete(r)
}

func requestForLease(_ context.Context, lease client.Object) []reconcile.Request {
	if node, ok := nodeName(lease.GetName()); ok {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: node}}}
	}
	return nil
}

// Trim is the cache's transformation of nodes. It keeps their names, and our labels of their metadata, and the taints of whole nodes.
func Trim(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion}, Spec: corev1.NodeSpec{Taints: node.Spec.Taints}}, nil
	}
	node, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	trimmed := &metav1.PartialObjectMetadata{TypeMeta: node.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: map[string]string{}}}
	for _, key := range []string{v1.SchedulableLabel, AcceleratorKey, v1.CPUManagerLabel, v1.OldCPUManagerLabel, v1.RealtimeLabel} {
		if value, ok := node.Labels[key]; ok {
			trimmed.Labels[key] = value
		}
	}
	return trimmed, nil
}

// Reconcile brings the labels of one node up to date.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	node := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	nodeErr := r.Client.Get(ctx, request.NamespacedName, node)
	if client.IgnoreNotFound(nodeErr) != nil {
		return ctrl.Result{}, fmt.Errorf("get node: %w", nodeErr)
	}
	lease, err := r.listen(ctx, request.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	left := r.heard[request.Name].left(r.Clock.Now())
	again := ctrl.Result{RequeueAfter: max(left, 0)}
	switch {
	case apierrors.IsNotFound(nodeErr) && left > 0: // the node has just come or gone
		return again, nil
	case apierrors.IsNotFound(nodeErr):
		delete(r.heard, request.Name)
		return ctrl.Result{}, r.forget(ctx, lease)
	case lease == nil && node.Labels[v1.SchedulableLabel] == "":
		return ctrl.Result{}, nil // the node never had a virt-handler
	}
	return again, r.label(ctx, node, lease, left > 0)
}

// listen returns the Lease of a node's virt-handler, or nil, and notes when it was renewed.
func (r *Reconciler) listen(ctx context.Context, node string) (*coordinationv1.Lease, error) {
	var lease *coordinationv1.Lease
	// An old Lease in the cache may only mean that the cache lost its connection to the API
	// server.
	for _, reader := range []client.Reader{r.Client, r.Live} {
		lease = &coordinationv1.Lease{}
		err := reader.Get(ctx, client.ObjectKey{Namespace: v1.KubeVirtNamespace, Name: LeaseName(node)}, lease)
		if apierrors.IsNotFound(err) {
			delete(r.heard, node)
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("get Lease of virt-handler: %w", err)
		}
		r.heard[node] = listen(r.heard[node], lease, r.Clock.Now())
		if r.heard[node].left(r.Clock.Now()) > 0 {
			break
		}
	}
	return lease, nil
}

// label writes the labels if any of them differs.
func (r *Reconciler) label(ctx context.Context, node *metav1.PartialObjectMetadata, lease *coordinationv1.Lease, alive bool) error {
	changed := node.DeepCopy()
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	differs := false
	for key, value := range labels(lease, alive) {
		differs = differs || changed.Labels[key] != value
		changed.Labels[key] = value
	}
	if !differs {
		return nil
	}
	if lease != nil && lease.Spec.RenewTime != nil {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, HeartbeatAnnotation, lease.Spec.RenewTime.UTC().Format(time.RFC3339))
	}
	if err := r.Client.Patch(ctx, changed, client.MergeFrom(node)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("label node: %w", err))
	}
	return nil
}

// forget deletes the Lease that a deleted node's virt-handler left.
func (r *Reconciler) forget(ctx context.Context, lease *coordinationv1.Lease) error {
	if lease == nil {
		return nil
	}
	err := r.Client.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
	if err != nil && !apierrors.IsConflict(err) {
		return client.IgnoreNotFound(fmt.Errorf("delete Lease of a deleted node: %w", err))
	}
	return nil
}
