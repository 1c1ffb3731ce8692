package nodelabel

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
	"github.com/kubeqemu/kubeqemu/internal/handlerlease"
)

// Reconciler labels nodes. Its requests name nodes.
type Reconciler struct {
	// Client reads from caches that hold virt-handlers' Leases, and the part of nodes that
	// Trim keeps.
	Client client.Client
	// Live reads past the cache. It is read before a virt-handler counts as gone.
	Live  client.Reader
	Clock clock.PassiveClock
	// Cluster returns the cluster's configuration.
	Cluster func(context.Context) (*v1.KubeVirtConfiguration, error)

	// Without lock, for there is one worker.
	heard map[string]heard // by node
	// unread are the Leases, by node, whose text of CPUs could not be read.
	unread map[string]string
	tscs   frequencies
	tscsAt time.Time
}

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	r.heard, r.unread = map[string]heard{}, map[string]string{}
	return ctrl.NewControllerManagedBy(mgr).
		Named("nodelabel").
		// Only the node's metadata is watched: its status changes all the time.
		WatchesMetadata(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.Or(predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(requestForLease)).
		Watches(&v1.KubeVirt{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(kit.Options(1)).
		Complete(r)
}

// all are the nodes that have a virt-handler: the configuration says which CPU models are obsolete.
func (r *Reconciler) all(ctx context.Context, _ client.Object) (out []reconcile.Request) {
	var leases coordinationv1.LeaseList
	if err := r.Client.List(ctx, &leases, client.InNamespace(v1.KubeVirtNamespace)); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list Leases") // each Lease that is renewed brings its node, too
		return nil
	}
	for i := range leases.Items {
		out = append(out, requestForLease(ctx, &leases.Items[i])...)
	}
	return out
}

func requestForLease(_ context.Context, lease client.Object) []reconcile.Request {
	if node, ok := handlerlease.Node(lease.GetName()); ok {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: node}}}
	}
	return nil
}

// Trim is the cache's transformation of nodes. It keeps their names, our labels and the annotation SkipNodeAnnotation of their
// metadata, and the taints of whole nodes.
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
	for key, value := range node.Labels {
		if isOurs(key) {
			trimmed.Labels[key] = value
		}
	}
	if value, ok := node.Annotations[v1.SkipNodeAnnotation]; ok {
		trimmed.Annotations = map[string]string{v1.SkipNodeAnnotation: value}
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
		delete(r.unread, request.Name)
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
		err := reader.Get(ctx, client.ObjectKey{Namespace: v1.KubeVirtNamespace, Name: handlerlease.Name(node)}, lease)
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
	cpusDiffer, err := r.labelCPUs(ctx, changed, lease)
	if !differs && !cpusDiffer {
		return err
	}
	if lease != nil && lease.Spec.RenewTime != nil {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, HeartbeatAnnotation, lease.Spec.RenewTime.UTC().Format(time.RFC3339))
	}
	if err := r.Client.Patch(ctx, changed, client.MergeFrom(node)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("label node: %w", err)
	}
	return err
}

// labelCPUs changes the labels that say which CPUs the node can give, and says whether any differs. A node that tells nothing keeps its
// labels: nothing says that its CPUs have changed. A node that has told of another accelerator than it has now loses them. With an error the other labels of the
// node are right all the same: whether a node is alive does not wait for its CPUs.
func (r *Reconciler) labelCPUs(ctx context.Context, node *metav1.PartialObjectMetadata, lease *coordinationv1.Lease) (differs bool, err error) {
	if node.Annotations[v1.SkipNodeAnnotation] == "true" || lease == nil {
		return false, nil
	}
	told, err := readTold(lease.Annotations)
	r.complain(ctx, node.Name, err)
	if told == nil {
		return false, nil
	}
	config := &v1.KubeVirtConfiguration{}
	if r.Cluster != nil {
		if config, err = r.Cluster(ctx); err != nil {
			return false, err
		}
	}
	want := cpuLabels(*told, config)
	if hertz, _ := v1.NodeTSC(want); hertz != 0 {
		if err := r.readFrequencies(ctx); err != nil {
			return false, err
		}
		maps.Copy(want, tscLabels(want, node.Name, r.tscs))
	}
	var gone []string
	for key := range node.Labels {
		if _, wanted := want[key]; v1.IsCPULabel(key) && !wanted {
			gone = append(gone, key)
		}
	}
	needed, err := r.needed(ctx, node.Name, gone)
	for _, key := range gone {
		if err == nil && !needed[key] {
			delete(node.Labels, key)
			differs = true
		}
	}
	for key, value := range want {
		if node.Labels[key] != value {
			node.Labels[key] = value
			differs = true
		}
	}
	return differs, err
}

// frequenciesAge is how old r.tscs may be: each node is looked at once a minute.
const frequenciesAge = time.Minute / 2

func (r *Reconciler) readFrequencies(ctx context.Context) error {
	now := r.Clock.Now()
	if age := now.Sub(r.tscsAt); age >= 0 && age < frequenciesAge {
		return nil
	}
	nodes := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if err := r.Client.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list nodes, for the frequencies of their TSCs: %w", err)
	}
	var vmis v1.VirtualMachineInstanceList
	if err := r.Client.List(ctx, &vmis, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list VirtualMachineInstances, for the frequencies of their TSCs: %w", err)
	}
	read := frequencies{guests: map[string][]int64{}}
	for i := range vmis.Items {
		vmi, target := &vmis.Items[i], ""
		if m := vmi.Status.MigrationState; m != nil {
			target = m.TargetNode
		}
		if f := vmi.TSCFrequency(); f != 0 && !vmi.IsFinal() {
			read.note(f, vmi.Status.NodeName, target)
		}
	}
	var ofNodes []int64
	for i := range nodes.Items {
		if f, _ := v1.NodeTSC(nodes.Items[i].Labels); f != 0 {
			ofNodes = append(ofNodes, f)
		}
	}
	if len(ofNodes) > 0 {
		read.others = append(read.others, slices.Min(ofNodes))
	}
	slices.Sort(read.others)
	read.others = slices.Compact(read.others)
	r.tscs, r.tscsAt = read, now
	return nil
}

// complain logs once that a node's Lease cannot be read, and again when it is another error.
func (r *Reconciler) complain(ctx context.Context, node string, err error) {
	if err == nil {
		delete(r.unread, node)
		return
	}
	if text := err.Error(); r.unread[node] != text {
		r.unread[node] = text
		ctrl.LoggerFrom(ctx).Error(err, "the Lease of virt-handler does not say which CPUs the node can give guests; its labels stay as they are", "node", node)
	}
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
