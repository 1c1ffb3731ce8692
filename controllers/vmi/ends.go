package vmi

import (
	"context"
	"sync"

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

// ends keeps how VMs ended whose pods are gone. The kubelet writes a pod's last
// status and lets it go within milliseconds: a reconcile that comes after both
// finds no pod, and would have to guess.
type ends struct {
	mu    sync.Mutex
	byVMI map[types.UID]end
}

func (e *ends) remember(vmi types.UID, last end) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byVMI == nil {
		e.byVMI = map[types.UID]end{}
	}
	e.byVMI[vmi] = last
}

func (e *ends) of(vmi types.UID) (end, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, ok := e.byVMI[vmi]
	return last, ok
}

func (e *ends) forget(vmi types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.byVMI, vmi)
}

// lastWord is how the VM ended by its deleted pod's last status, or else fallback.
func (r *Reconciler) lastWord(vmi *v1.VirtualMachineInstance, fallback end) end {
	if last, ok := r.ends.of(vmi.UID); ok {
		return last
	}
	return fallback
}

// takeDown keeps how a deleted pod's VM ended, if it is a VMI's: the VMI that a pod
// names is anybody's to write, so that VMI must exist and know the pod.
func (r *Reconciler) takeDown(ctx context.Context, pod *corev1.Pod) {
	vmi := &v1.VirtualMachineInstance{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: nameOfVMI(pod)}, vmi)
	if err != nil || rejected(pod) || pod.Name != PodName(vmi.Name, vmi.UID, First) || vmi.Status.ActivePods[pod.UID] == "" {
		return
	}
	if last, ended := podEnd(pod); ended {
		r.ends.remember(vmi.UID, last)
	}
}

// nameOfVMI is the name of the VMI that a pod says is its own. A pod whose owner
// the garbage collector took away still has its annotation.
func nameOfVMI(pod client.Object) string {
	if vmi := owner.Reference(pod, v1.VirtualMachineInstanceGroupVersionKind.GroupKind()); vmi != nil {
		return vmi.Name
	}
	return pod.GetAnnotations()[v1.DomainAnnotation]
}

// podEvents queues the VMI that a pod names, and takes down a deleted pod's last
// word first.
func (r *Reconciler) podEvents() handler.EventHandler {
	named := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, pod client.Object) []reconcile.Request {
		name := nameOfVMI(pod)
		if name == "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: name}}}
	})
	return handler.Funcs{
		CreateFunc: named.Create, UpdateFunc: named.Update, GenericFunc: named.Generic,
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if pod, ok := e.Object.(*corev1.Pod); ok {
				r.takeDown(ctx, pod)
			}
			named.Delete(ctx, e, q)
		},
	}
}
