// Package node is virt-handler's reconciler of VMIs. It wires a launcher's network, has
// QEMU started, and writes what the launcher reports into the VMI's status. Package
// slots knows which launcher is in which pod, package sessions talks to launchers,
// package serve answers virt-api, and package accelerator chooses KVM or emulation.
package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// Reconciler starts the VMs of one node and reports what their launchers say.
// Its client's cache holds only the VMIs of the node.
type Reconciler struct {
	Client   client.Client
	Events   events.EventRecorder
	Clock    clock.PassiveClock
	NodeName string
	Chooser  *accelerator.Chooser
	Sessions *sessions.Set
	// OpenVhostNet opens the kernel's vhost-net (netsetup.OpenVhostNet). It is tried before each
	// start, because a module may be loaded at any time. Nil stands for a kernel without it.
	OpenVhostNet func(queues int) ([]*os.File, error)
	// Cluster returns the cluster's configuration. Nil stands for an empty one.
	Cluster func(context.Context) (*v1.KubeVirtConfiguration, error)
	// Changed brings the VMIs whose launchers reported something.
	Changed <-chan event.GenericEvent

	writes      kit.Writes
	gathering   gathering
	vhostCounts vhostCounts
	woken       chan event.GenericEvent
}

// PodIndex indexes VMIs by the names of their launcher pods.
const PodIndex = "launcherPod"

// IndexByPod is the function behind PodIndex.
func IndexByPod(o client.Object) []string {
	object, ok := o.(*v1.VirtualMachineInstance)
	if !ok {
		return nil
	}
	return vmi.PodNames(object)
}

// Setup registers the reconciler with a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1.VirtualMachineInstance{}, PodIndex, IndexByPod); err != nil {
		return fmt.Errorf("index VMIs by pod: %w", err)
	}
	r.woken = make(chan event.GenericEvent, accelerator.MaxSlots)
	return ctrl.NewControllerManagedBy(mgr).
		Named("node").
		For(&v1.VirtualMachineInstance{}).
		WatchesRawSource(source.Channel(r.Changed, &handler.EnqueueRequestForObject{})).
		WatchesRawSource(source.Channel(r.woken, &handler.EnqueueRequestForObject{})).
		// A launcher that does not answer holds one worker, and so delays no other VM.
		WithOptions(kit.Options(accelerator.MaxSlots)).
		Complete(r)
}

// Reconcile takes one VMI a step further. Where no launcher is connected, it says so in the
// status after a while, and does no more: absence of information is never death.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	r.gathering.note(request.NamespacedName, false)
	r.wake(ctx, request.Namespace)
	object := &v1.VirtualMachineInstance{}
	if err := r.Client.Get(ctx, request.NamespacedName, object); err != nil {
		r.writes.Forget(request.NamespacedName)
		r.vhostCounts.forget(request.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.writes.Behind(object) {
		return ctrl.Result{RequeueAfter: kit.WriteDelay}, nil
	}
	launcher := r.session(object)
	if object.IsFinal() {
		return ctrl.Result{}, nil
	}
	if launcher == nil {
		return r.withoutLauncher(ctx, object)
	}
	ips, err := vouchedFor(launcher, object)
	if err != nil {
		return r.refuse(ctx, object, err)
	}
	before := object.DeepCopy()
	wait, startErr := r.advance(ctx, object, launcher)
	if wait > 0 && startErr == nil {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	if len(ips) == 0 && startErr == nil {
		return ctrl.Result{}, nil // the pod has no addresses yet; their change brings us back
	}
	again := sooner(r.growDisks(ctx, object, launcher), r.holdPings(ctx, object, launcher))
	now := metav1.NewTime(r.Clock.Now())
	report(object, launcher.State(), networkOf(launcher, object, ips), now)
	if agent := launcher.Agent(); agent == nil && withAgent(launcher.State()) {
		keepAgentReport(object, before)
	} else {
		reportAgent(object, ptr.Deref(agent, control.AgentReport{}), now)
	}
	reportSilence(object, before, launcher.State(), launcher.Silent(), now)
	if startErr != nil {
		object.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSynchronized, Status: metav1.ConditionFalse,
			Reason: v1.ReasonStartFailed, Message: control.Printable(startErr.Error(), maxMessage)}, now)
	}
	if written, err := r.writeStatus(ctx, before, object); err != nil {
		return ctrl.Result{}, err
	} else if written {
		r.announce(before, object)
	}
	r.announcePing(object, launcher)
	if errors.Is(startErr, control.ErrClosed) {
		return ctrl.Result{}, nil // the launcher's next hello brings us back
	}
	if startErr != nil { // the error goes to the log, and a launcher may make it as long as it likes
		return ctrl.Result{}, errors.New(control.Printable(startErr.Error(), maxMessage))
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// sooner is the shorter of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// withoutLauncher says in the status of a running VMI that it is not known whether the guest
// runs.
func (r *Reconciler) withoutLauncher(ctx context.Context, object *v1.VirtualMachineInstance) (ctrl.Result, error) {
	if object.Status.NodeName != r.NodeName || object.Status.Phase != v1.Running {
		return ctrl.Result{}, nil
	}
	gone := time.Duration(math.MaxInt64)
	for _, pod := range pods(object) {
		gone = min(gone, r.Sessions.Gone(pod))
	}
	if wait := gonePatience - gone; wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	before := object.DeepCopy()
	reportGone(object, notConnected, metav1.NewTime(r.Clock.Now()))
	written, err := r.writeStatus(ctx, before, object)
	if written {
		r.announce(before, object)
	}
	return ctrl.Result{}, err
}

// pods are the names of the pods that may be the VMI's launchers; see vmi.PodNames.
func pods(object *v1.VirtualMachineInstance) []types.NamespacedName {
	var all []types.NamespacedName
	for _, name := range vmi.PodNames(object) {
		all = append(all, types.NamespacedName{Namespace: object.Namespace, Name: name})
	}
	return all
}

// report brings a VMI's status up to date with the launcher's report. It is pure. Facts that
// the VMI's spec gives are taken from the spec: a launcher whose guest broke out may report
// anything.
func report(object *v1.VirtualMachineInstance, state control.StateReport, network map[string]networkFacts, now metav1.Time) {
	status := &object.Status
	if neverRan(object, state) {
		return // virt-handler holds the guest, and the status does not show that
	}
	if state.Machine != nil && (state.StartedAt != nil || state.State == control.StatePaused) {
		if v1.KnownMachineType(state.Machine.Type) {
			status.Machine = &v1.Machine{Type: state.Machine.Type}
		}
		status.Interfaces = interfaces(object, network)
		if state.Machine.Accelerator == qemuargs.TCG {
			status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSoftwareEmulation, Status: metav1.ConditionTrue,
				Reason: v1.ReasonTCG, Message: "the guest is emulated by QEMU's TCG: slow, and not an isolation boundary"}, now)
		}
		status.SetPhase(v1.Scheduled, now)
		status.SetPhase(v1.Running, now)
		status.RemoveCondition(v1.ConditionSynchronized)
	}
	ready := v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1.ReasonGuestNotRunning}
	if (state.State == control.StateRunning || state.State == control.StatePaused) && status.Phase != v1.Running && !object.IsFinal() {
		return // a guest that runs has a machine: this launcher reports nonsense
	}
	switch state.State {
	case control.StateRunning:
		ready = runs(object)
		status.RemoveCondition(v1.ConditionPaused)
	case control.StatePaused:
		ready.Message = "the guest is paused"
		status.SetCondition(paused(state.Pause), now)
	case control.StateExited:
		if state.Failure == "" {
			return // the pod is about to end, and its end says more
		}
		ready.Reason, ready.Message = v1.ReasonGuestFailed, "the guest has failed, and its launcher is kept: "+control.Short(state.Failure)
		status.RemoveCondition(v1.ConditionPaused)
	case control.StateShuttingDown:
		ready.Reason, ready.Message = v1.ReasonGuestShuttingDown, "the guest was asked by the ACPI power button to shut down"
	default:
		return
	}
	status.SetCondition(ready, now)
}

// networkFacts is what virt-handler knows of the pod's link behind an interface.
type networkFacts struct {
	link string
	ips  []string // IPv4 first
	nic  resolve.NIC
}

// linksOf returns the pod's link behind each of the VMI's interfaces, by interface.
func linksOf(launcher *sessions.Session, object *v1.VirtualMachineInstance) map[string]netsetup.Facts {
	out := map[string]netsetup.Facts{}
	for _, nic := range object.Spec.Domain.Devices.Interfaces {
		out[nic.Name] = launcher.Links[sessions.PodLink] // every supported network is the pod network
	}
	return out
}

// networkOf is what is known of a VMI's networks, by interface. ips are the pod's own
// addresses.
func networkOf(launcher *sessions.Session, object *v1.VirtualMachineInstance, ips []string) map[string]networkFacts {
	out := map[string]networkFacts{}
	for name, link := range linksOf(launcher, object) {
		facts := networkFacts{link: link.Link, nic: nicFacts(link)}
		if link.Link == sessions.PodLink {
			facts.ips = ips
		}
		out[name] = facts
	}
	return out
}

// nicFacts are the facts of a link that resolve.Machine needs.
func nicFacts(link netsetup.Facts) resolve.NIC { return resolve.NIC{MTU: link.MTU, MAC: link.MAC} }

func interfaces(object *v1.VirtualMachineInstance, network map[string]networkFacts) []v1.NetworkInterfaceStatus {
	var out []v1.NetworkInterfaceStatus
	for _, nic := range object.Spec.Domain.Devices.Interfaces {
		facts := network[nic.Name]
		s := v1.NetworkInterfaceStatus{Name: nic.Name, MAC: resolve.MAC(object, nic, facts.nic), IPs: facts.ips, PodInterfaceName: facts.link,
			InfoSource: fromDomain, QueueCount: int32(resolve.Queues(object, nic))}
		if len(facts.ips) > 0 {
			s.IP = facts.ips[0]
		}
		out = append(out, s)
	}
	return out
}

// announce makes events of what is new in the status.
func (r *Reconciler) announce(before, object *v1.VirtualMachineInstance) {
	if before.Status.Phase != v1.Running && object.Status.Phase == v1.Running {
		r.Events.Eventf(object, nil, corev1.EventTypeNormal, "Started", "Start", "VirtualMachineInstance started.")
	}
	ready, old := object.Status.Condition(v1.ConditionReady), before.Status.Condition(v1.ConditionReady)
	if ready != nil && ready.Reason == v1.ReasonGuestShuttingDown && (old == nil || old.Reason != ready.Reason) {
		r.Events.Eventf(object, nil, corev1.EventTypeNormal, "ShuttingDown", "Shutdown", "Signaled Graceful Shutdown")
	}
	r.announcePause(before, object)
	if silent(ready) && !silent(old) {
		r.Events.Eventf(object, nil, corev1.EventTypeWarning, ready.Reason, "Probe", "%s", ready.Message)
	}
	if s, old := object.Status.Condition(v1.ConditionSynchronized), before.Status.Condition(v1.ConditionSynchronized); s != nil && old == nil {
		r.Events.Eventf(object, nil, corev1.EventTypeWarning, "SyncFailed", "Synchronize", "%s", s.Message)
	}
	r.announceCredentials(before, object)
}

func (r *Reconciler) writeStatus(ctx context.Context, before, object *v1.VirtualMachineInstance) (written bool, err error) {
	if equality.Semantic.DeepEqual(before.Status, object.Status) {
		return false, nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	err = r.Client.Status().Patch(ctx, object, patch)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil // another writer was first; its write brings us back
	}
	if err != nil {
		return false, fmt.Errorf("write status: %w", err)
	}
	r.writes.Note(before, object)
	return true, nil
}
