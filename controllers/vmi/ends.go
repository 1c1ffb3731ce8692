package vmi

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
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

// takeDown keeps how a deleted pod's VM ended, if it is a VMI's: the owner that a
// pod names is anybody's to write, so the VMI must exist and the name be its pod's.
func (r *Reconciler) takeDown(ctx context.Context, pod *corev1.Pod) {
	controller := metav1.GetControllerOf(pod)
	if controller == nil || rejected(pod) || pod.Name != PodName(controller.Name, controller.UID) {
		return
	}
	vmi := &v1.VirtualMachineInstance{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: controller.Name}, vmi)
	if err != nil || !controls(vmi, pod) || vmi.Status.ActivePods[pod.UID] == "" {
		return
	}
	if last, ended := podEnd(pod); ended {
		r.ends.remember(vmi.UID, last)
	}
}

// podEvents queues the VMI that controls a pod, and takes down a deleted pod's
// last word first.
func (r *Reconciler) podEvents(mgr ctrl.Manager) handler.EventHandler {
	owner := handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &v1.VirtualMachineInstance{}, handler.OnlyControllerOwner())
	return handler.Funcs{
		CreateFunc: owner.Create, UpdateFunc: owner.Update, GenericFunc: owner.Generic,
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if pod, ok := e.Object.(*corev1.Pod); ok {
				r.takeDown(ctx, pod)
			}
			owner.Delete(ctx, e, q)
		},
	}
}
