package migration

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// ofVMI queues the migrations of a VMI, and that of its status, whose object may be gone.
func (r *Reconciler) ofVMI(ctx context.Context, vmi client.Object) []reconcile.Request {
	out := r.named(ctx, vmi.GetNamespace(), vmi.GetName())
	if m := vmi.(*v1.VirtualMachineInstance).Migration(); m != nil && m.MigrationName != "" {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: vmi.GetNamespace(), Name: m.MigrationName}})
	}
	return out
}

// ofPod queues the migrations of the VMI that a pod names.
func (r *Reconciler) ofPod(ctx context.Context, pod client.Object) []reconcile.Request {
	if _, target := pod.GetLabels()[v1.MigrationJobLabel]; !target {
		return nil
	}
	reference := owner.Reference(pod.(*corev1.Pod), v1.VirtualMachineInstanceGroupVersionKind.GroupKind())
	if reference == nil {
		return nil
	}
	return r.named(ctx, pod.GetNamespace(), reference.Name)
}

func (r *Reconciler) named(ctx context.Context, namespace, vmi string) []reconcile.Request {
	list, err := r.list(ctx, client.InNamespace(namespace), client.MatchingFields{nameIndex: vmi})
	if err != nil {
		return nil
	}
	return requests(list, func(m *v1.VirtualMachineInstanceMigration) bool { return !m.IsFinal() || hasFinalizer(m) })
}

// afterEnd queues the migrations that wait when one has ended: it has left its place to another.
func (r *Reconciler) afterEnd() handler.EventHandler {
	others := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		list, err := r.list(ctx)
		if err != nil {
			return nil
		}
		return requests(list, waits)
	})
	return handler.Funcs{
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			before, ok := e.ObjectOld.(*v1.VirtualMachineInstanceMigration)
			if now, is := e.ObjectNew.(*v1.VirtualMachineInstanceMigration); ok && is && now.IsFinal() && !before.IsFinal() {
				others.Update(ctx, e, q)
			}
		},
		DeleteFunc: others.Delete,
	}
}

// waits says whether a migration has not begun.
func waits(m *v1.VirtualMachineInstanceMigration) bool { return !m.IsFinal() && !m.IsUnderway() }

func (r *Reconciler) list(ctx context.Context, which ...client.ListOption) ([]v1.VirtualMachineInstanceMigration, error) {
	var all v1.VirtualMachineInstanceMigrationList
	err := r.Client.List(ctx, &all, append(which, client.UnsafeDisableDeepCopy)...)
	return all.Items, err
}

func requests(list []v1.VirtualMachineInstanceMigration, wanted func(*v1.VirtualMachineInstanceMigration) bool) []reconcile.Request {
	var out []reconcile.Request
	for i := range list {
		if wanted(&list[i]) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list[i])})
		}
	}
	return out
}
