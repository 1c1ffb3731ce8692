// Package replicaset keeps as many VirtualMachineInstances as
// VirtualMachineInstanceReplicaSets ask for.
//
// What is to be done is planned from the cache, which may be behind, and then
// once more from what the API server says: only that is carried out. So
// nothing has to be remembered of what was made or deleted before.
package replicaset

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// Reconciler makes and deletes the VMIs of ReplicaSets.
type Reconciler struct {
	Client client.Client
	// Live reads past the cache; it is asked before anything is made or deleted.
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.PassiveClock
}

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1.VirtualMachineInstanceReplicaSet{}).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(r.concerned)).
		WithOptions(kit.Options(4)).
		Complete(r)
}

// concerned are the ReplicaSets that a change of a VMI may concern: its
// controller or, where it has none, those that might adopt it.
func (r *Reconciler) concerned(ctx context.Context, vmi client.Object) []reconcile.Request {
	if rs := owner.Reference(vmi, v1.VirtualMachineInstanceReplicaSetGroupVersionKind.GroupKind()); rs != nil {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: vmi.GetNamespace(), Name: rs.Name}}}
	}
	if metav1.GetControllerOfNoCopy(vmi) != nil {
		return nil
	}
	var list v1.VirtualMachineInstanceReplicaSetList
	if err := r.Client.List(ctx, &list, client.InNamespace(vmi.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list ReplicaSets")
	}
	var requests []reconcile.Request
	for i := range list.Items {
		selector, err := metav1.LabelSelectorAsSelector(list.Items[i].Spec.Selector)
		if err == nil && selector.Matches(labels.Set(vmi.GetLabels())) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancereplicasets,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancereplicasets/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancereplicasets/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile takes one ReplicaSet a step further, and writes its status once if
// it changed.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	rs := &v1.VirtualMachineInstanceReplicaSet{}
	if err := r.Client.Get(ctx, request.NamespacedName, rs); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := rs.DeepCopy()
	have, err := r.instances(ctx, r.Client, rs.Namespace)
	if err != nil {
		return ctrl.Result{}, err
	}
	if errs := v1.ValidateReplicaSet(rs); len(errs) > 0 {
		// Nothing is done, but what is there is counted. The selector may be what is wrong.
		owned := claim(rs, labels.Everything(), have).owned
		summarize(rs, rs.Status.LabelSelector, owned, &failure{v1.ReasonInvalidSpec, errs.ToAggregate()}, r.now())
		return ctrl.Result{}, r.report(ctx, before, rs)
	}
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read selector: %w", err)
	}
	mine := claim(rs, selector, have)
	var failed *failure
	var again time.Duration
	if !rs.Spec.Paused && rs.DeletionTimestamp == nil {
		p := scale(rs.WantedReplicas(), mine.owned, r.Clock.Now())
		again = p.again
		if p.acts() || len(mine.adopt)+len(mine.release) > 0 {
			if mine, again, failed, err = r.act(ctx, rs, selector); err != nil {
				return ctrl.Result{}, err
			}
		}
	}
	if failed != nil && (apierrors.IsConflict(failed.err) || apierrors.IsAlreadyExists(failed.err)) {
		// Somebody else wrote meanwhile: no failure, but what was planned is not done.
		failed, again = nil, time.Second
	}
	summarize(rs, selector.String(), mine.owned, failed, r.now())
	if err := r.report(ctx, before, rs); err != nil {
		return ctrl.Result{}, err
	}
	if failed != nil {
		r.Events.Eventf(rs, nil, corev1.EventTypeWarning, failed.reason, strings.TrimPrefix(failed.reason, "Failed"), "%s", failed.err.Error())
		return ctrl.Result{}, failed.err
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

func (r *Reconciler) now() metav1.Time { return metav1.NewTime(r.Clock.Now()) }

// instances lists a namespace's VMIs, which are not to be changed.
func (r *Reconciler) instances(ctx context.Context, from client.Reader, namespace string) ([]*v1.VirtualMachineInstance, error) {
	var list v1.VirtualMachineInstanceList
	if err := from.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list VirtualMachineInstances: %w", err)
	}
	all := make([]*v1.VirtualMachineInstance, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
	}
	return all, nil
}

// act plans anew from what the API server says, and carries it out. It returns
// the VMIs as they were before.
func (r *Reconciler) act(ctx context.Context, rs *v1.VirtualMachineInstanceReplicaSet, selector labels.Selector) (claims, time.Duration, *failure, error) {
	live := &v1.VirtualMachineInstanceReplicaSet{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(rs), live)
	if client.IgnoreNotFound(err) != nil {
		return claims{}, 0, nil, fmt.Errorf("get ReplicaSet: %w", err)
	}
	have, listErr := r.instances(ctx, r.Live, rs.Namespace)
	if listErr != nil {
		return claims{}, 0, nil, listErr
	}
	mine := claim(rs, selector, have)
	if err != nil || live.UID != rs.UID || live.Generation != rs.Generation || live.DeletionTimestamp != nil {
		return mine, 0, nil, nil // the cache is behind; the event of what it misses brings us back
	}
	if failed := r.change(ctx, rs, &mine); failed != nil {
		return mine, 0, failed, nil
	}
	p := scale(rs.WantedReplicas(), mine.owned, r.Clock.Now())
	failed := r.delete(ctx, rs, p.delete)
	if failed == nil {
		failed = r.create(ctx, rs, have, p.create)
	}
	return mine, p.again, failed, nil
}

// change adopts and releases VMIs.
func (r *Reconciler) change(ctx context.Context, rs *v1.VirtualMachineInstanceReplicaSet, mine *claims) *failure {
	for _, vmi := range mine.adopt {
		adopted := vmi.DeepCopy()
		adopted.OwnerReferences = append(adopted.OwnerReferences, ownedBy(rs))
		if err := r.patch(ctx, vmi, adopted); err != nil {
			return &failure{v1.ReasonFailedControl, fmt.Errorf("adopt VirtualMachineInstance %s: %w", vmi.Name, err)}
		}
		mine.owned = append(mine.owned, adopted)
	}
	for _, vmi := range mine.release {
		released := vmi.DeepCopy()
		released.OwnerReferences = nil
		for _, o := range vmi.OwnerReferences {
			if o.UID != rs.UID {
				released.OwnerReferences = append(released.OwnerReferences, o)
			}
		}
		if err := r.patch(ctx, vmi, released); client.IgnoreNotFound(err) != nil {
			return &failure{v1.ReasonFailedControl, fmt.Errorf("release VirtualMachineInstance %s: %w", vmi.Name, err)}
		}
	}
	return nil
}

func (r *Reconciler) patch(ctx context.Context, before, after *v1.VirtualMachineInstance) error {
	return r.Client.Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

func (r *Reconciler) delete(ctx context.Context, rs *v1.VirtualMachineInstanceReplicaSet, vmis []*v1.VirtualMachineInstance) *failure {
	for _, vmi := range vmis {
		err := r.Client.Delete(ctx, vmi, client.Preconditions{UID: &vmi.UID})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err): // gone, and perhaps there is another of its name
		case err != nil:
			return &failure{v1.ReasonFailedDelete, fmt.Errorf("delete VirtualMachineInstance %s: %w", vmi.Name, err)}
		default:
			r.Events.Eventf(rs, vmi, corev1.EventTypeNormal, "SuccessfulDelete", "Delete", "Deleted VirtualMachineInstance %s", vmi.Name)
		}
	}
	return nil
}

func (r *Reconciler) create(ctx context.Context, rs *v1.VirtualMachineInstanceReplicaSet, have []*v1.VirtualMachineInstance, count int) *failure {
	taken := map[string]bool{}
	for _, vmi := range have {
		taken[vmi.Name] = true
	}
	for _, name := range names(rs, taken, count) {
		vmi := instance(rs, name)
		err := kit.SortedRefusal(r.Client.Create(ctx, vmi))
		switch {
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return nil
		case err != nil:
			return &failure{v1.ReasonFailedCreate, fmt.Errorf("create VirtualMachineInstance %s: %w", name, err)}
		}
		r.Events.Eventf(rs, vmi, corev1.EventTypeNormal, "SuccessfulCreate", "Create", "Created VirtualMachineInstance %s", name)
	}
	return nil
}

// report writes the status if it changed, and tells what it newly says.
func (r *Reconciler) report(ctx context.Context, before, rs *v1.VirtualMachineInstanceReplicaSet) error {
	if equality.Semantic.DeepEqual(before.Status, rs.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, rs, patch); err != nil {
		if apierrors.IsConflict(err) {
			return nil // somebody else wrote; their write comes back as an event
		}
		return client.IgnoreNotFound(err)
	}
	r.announce(before, rs)
	return nil
}

func (r *Reconciler) announce(before, rs *v1.VirtualMachineInstanceReplicaSet) {
	const paused, failure = v1.VirtualMachineInstanceReplicaSetReplicaPaused, v1.VirtualMachineInstanceReplicaSetReplicaFailure
	was, is := before.Status.Condition(paused), rs.Status.Condition(paused)
	switch {
	case was == nil && is != nil:
		r.Events.Eventf(rs, nil, corev1.EventTypeNormal, "SuccessfulPaused", "Pause", "Paused")
	case was != nil && is == nil:
		r.Events.Eventf(rs, nil, corev1.EventTypeNormal, "SuccessfulResumed", "Resume", "Resumed")
	}
	was, is = before.Status.Condition(failure), rs.Status.Condition(failure)
	if is != nil && is.Reason == v1.ReasonInvalidSpec && (was == nil || was.Message != is.Message) {
		r.Events.Eventf(rs, nil, corev1.EventTypeWarning, v1.ReasonInvalidSpec, "Validate", "%s", is.Message)
	}
}
