package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Reconciler starts the VMs of one node and reports what their launchers say.
// Its client's cache holds only the VMIs of the node.
type Reconciler struct {
	Client      client.Client
	Events      events.EventRecorder
	Clock       clock.PassiveClock
	NodeName    string
	Accelerator qemuargs.Accelerator
	Sessions    *Sessions
	// Changed brings the VMIs whose launchers said something.
	Changed <-chan event.GenericEvent
}

// PodIndex indexes VMIs by the name of their launcher pod.
const PodIndex = "launcherPod"

// IndexByPod is the function behind PodIndex.
func IndexByPod(o client.Object) []string {
	return []string{vmi.PodName(o.GetName(), o.GetUID())}
}

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1.VirtualMachineInstance{}, PodIndex, IndexByPod); err != nil {
		return fmt.Errorf("index VMIs by pod: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("node").
		For(&v1.VirtualMachineInstance{}).
		WatchesRawSource(source.Channel(r.Changed, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
		Complete(r)
}

// Reconcile takes one VMI a step further. Without a launcher on the line it
// does nothing: absence of information is never death.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := &v1.VirtualMachineInstance{}
	if err := r.Client.Get(ctx, request.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	launcher := r.launcher(object)
	if launcher == nil || object.IsFinal() {
		return ctrl.Result{}, nil
	}
	before := object.DeepCopy()
	var startErr error
	if launcher.State().State == control.StateWaiting && object.DeletionTimestamp == nil {
		startErr = r.start(ctx, object, launcher)
	}
	now := metav1.NewTime(r.Clock.Now())
	report(&object.Status, launcher.State(), launcher.podIPs(), now)
	if startErr != nil {
		object.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSynchronized, Status: metav1.ConditionFalse,
			Reason: "StartFailed", Message: startErr.Error()}, now)
	}
	r.announce(before, object)
	if err := r.writeStatus(ctx, before, object); err != nil {
		return ctrl.Result{}, err
	}
	if errors.Is(startErr, control.ErrClosed) {
		return ctrl.Result{}, nil // its next hello brings us back
	}
	return ctrl.Result{}, startErr
}

// launcher returns the launcher of a VMI. It serves only a VMI whose status,
// written by virt-controller, says that its pod is this one and on this node.
func (r *Reconciler) launcher(object *v1.VirtualMachineInstance) *session {
	if object.Status.NodeName != r.NodeName || len(object.Status.ActivePods) == 0 {
		return nil
	}
	return r.Sessions.Get(types.NamespacedName{Namespace: object.Namespace, Name: vmi.PodName(object.Name, object.UID)})
}

// report brings a status up to date with what the launcher says. It is pure.
func report(status *v1.VirtualMachineInstanceStatus, state control.StateReport, podIPs []string, now metav1.Time) {
	if state.Machine != nil && state.StartedAt != nil {
		status.Machine = &v1.Machine{Type: state.Machine.Type}
		status.Interfaces = interfaces(state.Machine, podIPs)
		if state.Machine.Accelerator == qemuargs.TCG {
			status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSoftwareEmulation, Status: metav1.ConditionTrue,
				Reason: "TCG", Message: "the guest is emulated by QEMU's TCG: slow, and not an isolation boundary"}, now)
		}
		status.SetPhase(v1.Scheduled, now)
		status.SetPhase(v1.Running, now)
		status.RemoveCondition(v1.ConditionSynchronized)
	}
	ready := v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: "GuestNotRunning"}
	switch state.State {
	case control.StateRunning:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, "GuestRunning", "the guest's CPUs run"
		status.RemoveCondition(v1.ConditionPaused)
	case control.StatePaused:
		ready.Message = "the guest is paused"
		status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionPaused, Status: metav1.ConditionTrue,
			Reason: "Paused", Message: "the guest's CPUs are stopped"}, now)
	case control.StateShuttingDown:
		ready.Reason, ready.Message = "GuestShuttingDown", "the guest was asked by the ACPI power button to shut down"
	default:
		return
	}
	status.SetCondition(ready, now)
}

func interfaces(m *qemuargs.Machine, podIPs []string) []v1.NetworkInterfaceStatus {
	var out []v1.NetworkInterfaceStatus
	for _, nic := range m.NICs {
		s := v1.NetworkInterfaceStatus{Name: nic.Name, MAC: nic.MAC, IPs: podIPs, PodInterfaceName: podLink, InfoSource: "domain", QueueCount: int32(nic.Queues)}
		if len(podIPs) > 0 {
			s.IP = podIPs[0]
		}
		out = append(out, s)
	}
	return out
}

// announce tells as events what the status newly says.
func (r *Reconciler) announce(before, object *v1.VirtualMachineInstance) {
	if before.Status.Phase != v1.Running && object.Status.Phase == v1.Running {
		r.Events.Eventf(object, nil, corev1.EventTypeNormal, "Started", "Start", "VirtualMachineInstance started.")
	}
	ready, old := object.Status.Condition(v1.ConditionReady), before.Status.Condition(v1.ConditionReady)
	if ready != nil && ready.Reason == "GuestShuttingDown" && (old == nil || old.Reason != ready.Reason) {
		r.Events.Eventf(object, nil, corev1.EventTypeNormal, "ShuttingDown", "Shutdown", "Signaled Graceful Shutdown")
	}
	if s, old := object.Status.Condition(v1.ConditionSynchronized), before.Status.Condition(v1.ConditionSynchronized); s != nil && old == nil {
		r.Events.Eventf(object, nil, corev1.EventTypeWarning, "SyncFailed", "Synchronize", "%.900s", s.Message)
	}
}

func (r *Reconciler) writeStatus(ctx context.Context, before, object *v1.VirtualMachineInstance) error {
	if equality.Semantic.DeepEqual(before.Status, object.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	err := r.Client.Status().Patch(ctx, object, patch)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // somebody else wrote; that write brings us back
	}
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

// CollectSlots drops the slots of ended pods now and then until ctx ends. It
// is not on the path of anything: a slot left over costs an empty folder.
func CollectSlots(ctx context.Context, slots *Slots, interval time.Duration, failed func(error)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := slots.Collect(ctx); err != nil && ctx.Err() == nil {
				failed(err)
			}
		}
	}
}
