// Package replicaset keeps as many VirtualMachineInstances as
// VirtualMachineInstanceReplicaSets ask for.
//
// A reconcile plans from the cache, which may be behind. If there is something to do, it plans
// again from the API server's objects, and carries out only that plan. So it needs no memory
// of the VMIs that it made or deleted before.
package replicaset

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	"github.com/kubeqemu/kubeqemu/api/validation"
	"github.com/kubeqemu/kubeqemu/controllers/group"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// Reconciler makes and deletes the VMIs of ReplicaSets.
type Reconciler struct {
	Client client.Client
	// Live reads past the cache. It is read before a VMI is created or deleted.
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.PassiveClock
	// Presets reads the presets of a namespace.
	Presets kit.Presets
}

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1.VirtualMachineInstanceReplicaSet{}).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(r.concerned)).
		WithOptions(kit.Options(4)).
		Complete(kit.Patient(r, r.Clock))
}

// concerned are the ReplicaSets that a change of a VMI may concern: the VMI's controller, or,
// if it has none, the ReplicaSets that may adopt it.
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
	have, err := r.instances(ctx, r.Client, rs.Namespace)
	if err != nil {
		return ctrl.Result{}, err
	}
	report := func(found group.Found) (ctrl.Result, error) {
		reporter := group.Reporter{Client: r.Client, Events: r.Events, Resumed: "SuccessfulResumed"}
		return reporter.Report(ctx, rs, found, metav1.NewTime(r.Clock.Now()))
	}
	if errs := validation.ValidateVirtualMachineInstanceReplicaSet(rs); len(errs) > 0 {
		replicas, ready := count(claim(rs, labels.Everything(), have).owned)
		return report(group.Invalid(rs, replicas, ready, paused(rs), errs.ToAggregate()))
	}
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read selector: %w", err)
	}
	mine := claim(rs, selector, have)
	found := group.Found{Selector: selector.String(), Paused: paused(rs)}
	if !rs.Spec.Paused && rs.DeletionTimestamp == nil {
		p := scale(rs.WantedReplicas(), mine.owned, r.Clock.Now())
		found.Again = p.again
		if p.acts() || len(mine.adopt)+len(mine.release) > 0 {
			if mine, found.Again, found.Failed, err = r.act(ctx, rs, selector); err != nil {
				return ctrl.Result{}, err
			}
		}
	}
	found.Replicas, found.Ready = count(mine.owned)
	return report(found)
}

// paused says what a reconcile leaves undone while spec.paused is set.
func paused(rs *v1.VirtualMachineInstanceReplicaSet) string {
	if !rs.Spec.Paused {
		return ""
	}
	return "nothing is made or deleted while spec.paused is set"
}

// count counts VMIs that neither ended nor are being deleted, and those of them whose
// guests run.
func count(owned []*v1.VirtualMachineInstance) (replicas, ready int32) {
	for _, vmi := range owned {
		if !isActive(vmi) {
			continue
		}
		replicas++
		if isReady(vmi) {
			ready++
		}
	}
	return replicas, ready
}

// instances lists a namespace's VMIs. The caller must not change them: they are shared with
// the cache.
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

// act plans again, from the API server's objects, and carries out the plan. It returns the
// VMIs as they were before.
func (r *Reconciler) act(ctx context.Context, rs *v1.VirtualMachineInstanceReplicaSet, selector labels.Selector) (claims, time.Duration, *group.Failure, error) {
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
		return mine, 0, nil, nil // the cache is behind; its next event brings us back
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
func (r *Reconciler) change(ctx context.Context, rs *v1.VirtualMachineInstanceReplicaSet, mine *claims) *group.Failure {
	for _, vmi := range mine.adopt {
		adopted := vmi.DeepCopy()
		adopted.OwnerReferences = append(adopted.OwnerReferences, ownedBy(rs))
		if err := r.patch(ctx, vmi, adopted); err != nil {
			return &group.Failure{Reason: v1.ReasonFailedControl, Err: fmt.Errorf("adopt VirtualMachineInstance %s: %w", vmi.Name, err)}
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
			return &group.Failure{Reason: v1.ReasonFailedControl, Err: fmt.Errorf("release VirtualMachineInstance %s: %w", vmi.Name, err)}
		}
	}
	return nil
}

func (r *Reconciler) patch(ctx context.Context, before, after *v1.VirtualMachineInstance) error {
	return r.Client.Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

func (r *Reconciler) delete(ctx context.Context, rs *v1.VirtualMachineInstanceReplicaSet, vmis []*v1.VirtualMachineInstance) *group.Failure {
	for _, vmi := range vmis {
		err := r.Client.Delete(ctx, vmi, client.Preconditions{UID: &vmi.UID})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err): // gone, or replaced by another of the same name
		case err != nil:
			return &group.Failure{Reason: v1.ReasonFailedDelete, Err: fmt.Errorf("delete VirtualMachineInstance %s: %w", vmi.Name, err)}
		default:
			r.Events.Eventf(rs, vmi, corev1.EventTypeNormal, "SuccessfulDelete", "Delete", "Deleted VirtualMachineInstance %s", vmi.Name)
		}
	}
	return nil
}

func (r *Reconciler) create(ctx context.Context, rs *v1.VirtualMachineInstanceReplicaSet, have []*v1.VirtualMachineInstance, count int) *group.Failure {
	taken := map[string]bool{}
	for _, vmi := range have {
		taken[vmi.Name] = true
	}
	for _, name := range names(rs, taken, count) {
		vmi := instance(rs, name)
		overridden, err := r.Presets.Apply(ctx, vmi)
		if err == nil {
			err = kit.SortedRefusal(r.Client.Create(ctx, vmi))
		}
		switch {
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return nil
		case err != nil:
			failed := &group.Failure{Reason: v1.ReasonFailedCreate, Err: fmt.Errorf("create VirtualMachineInstance %s: %w", name, err)}
			if errors.Is(err, kit.ErrPresets) {
				failed.After = r.patience(rs)
			}
			return failed
		}
		r.Events.Eventf(rs, vmi, corev1.EventTypeNormal, "SuccessfulCreate", "Create", "Created VirtualMachineInstance %s", name)
		kit.AnnounceOverridden(r.Events, vmi, rs, overridden)
	}
	return nil
}

// patience is the wait until presets are applied again, which somebody has to change first. The
// longer the ReplicaSet has been failing, the longer the wait.
func (r *Reconciler) patience(rs *v1.VirtualMachineInstanceReplicaSet) time.Duration {
	c := rs.ReplicaStatus().Condition(v1.ReplicaFailure)
	if c == nil {
		return kit.Wait(0)
	}
	return kit.Wait(r.Clock.Since(c.LastTransitionTime.Time))
}
