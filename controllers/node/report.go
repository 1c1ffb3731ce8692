package node

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// paused returns the condition of a guest whose CPUs are stopped. Texts of the launcher are made printable, and as
// short as a status allows.
func paused(pause *control.Pause) v1.VirtualMachineInstanceCondition {
	c := v1.VirtualMachineInstanceCondition{Type: v1.ConditionPaused, Status: metav1.ConditionTrue,
		Reason: v1.ReasonPaused, Message: "the guest's CPUs are stopped"}
	switch {
	case pause == nil:
	case pause.Status == control.PausedByUser:
		c.Reason, c.Message = v1.ReasonPausedByUser, "VMI was paused by user"
	case pause.Status == control.PausedIOError:
		c.Reason, c.Message = v1.ReasonPausedIOError, ioErrorMessage(pause)
	default:
		c.Message = fmt.Sprintf("the guest's CPUs are stopped; QEMU's run state is %q", control.Short(pause.Status))
	}
	return c
}

// runs returns the condition Ready of a guest whose CPUs run. For a VMI with a readiness probe it keeps the result
// that virt-controller wrote.
func runs(object *v1.VirtualMachineInstance) v1.VirtualMachineInstanceCondition {
	c := v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionTrue,
		Reason: v1.ReasonGuestRunning, Message: v1.MessageGuestRunning}
	if object.Spec.ReadinessProbe == nil {
		return c
	}
	old := object.Status.Condition(v1.ConditionReady)
	if old != nil && (old.Reason == v1.ReasonGuestReady || old.Reason == v1.ReasonContainersNotReady) {
		return *old
	}
	c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1.ReasonContainersNotReady, v1.MessageContainersNotReady
	return c
}

func ioErrorMessage(pause *control.Pause) string {
	operation := "use"
	if pause.Operation == "read" || pause.Operation == "write" {
		operation = pause.Operation
	}
	text := control.Short(pause.Error)
	if pause.NoSpace {
		text += " (nospace)"
	}
	return fmt.Sprintf("VMI was paused, low-level IO error detected: %s disk %q: %s",
		operation, control.Short(pause.Disk), text)
}

// announcePause makes events of the guest's pauses and their ends. A guest that is paused from its start on makes
// none: its VMI's event Started is enough. told is the condition Ready as virt-handler says it, or nil.
func (r *Reconciler) announcePause(before, object *v1.VirtualMachineInstance,
	told *v1.VirtualMachineInstanceCondition) {
	now, then := object.Status.Condition(v1.ConditionPaused), before.Status.Condition(v1.ConditionPaused)
	ran := before.Status.Phase == v1.Running && object.Status.Phase == v1.Running
	switch {
	case now != nil && (then == nil || then.Reason != now.Reason):
		switch {
		case now.Reason == v1.ReasonPausedIOError:
			r.Events.Eventf(object, nil, corev1.EventTypeWarning, "IOerror", "Pause", "%s", now.Message)
		case ran && now.Reason == v1.ReasonPausedByUser:
			r.Events.Eventf(object, nil, corev1.EventTypeNormal, "Paused", "Pause", "VirtualMachineInstance paused")
		case ran:
			r.Events.Eventf(object, nil, corev1.EventTypeWarning, "Paused", "Pause", "%s", now.Message)
		}
	case now == nil && then != nil && ran && (told == nil || told.Reason != v1.ReasonGuestFailed):
		r.Events.Eventf(object, nil, corev1.EventTypeNormal, "Unpaused", "Unpause", "VirtualMachineInstance unpaused")
	}
}

// maxMessage is how long a condition's message may be, in bytes.
const maxMessage = 1024

// report brings a VMI's status up to date with the launcher's report. It is pure. Facts that
// the VMI's spec gives are taken from the spec: a launcher whose guest broke out may report
// anything.
func report(object *v1.VirtualMachineInstance, state control.StateReport, network map[string]networkFacts,
	now metav1.Time) {
	status := &object.Status
	if neverRan(object, state) {
		return // virt-handler holds the guest, and the status does not show that
	}
	if state.Machine != nil && (state.StartedAt != nil || state.State == control.StatePaused) {
		if v1.KnownMachineType(state.Machine.Type, object.Spec.Architecture) {
			status.Machine = &v1.Machine{Type: state.Machine.Type}
		}
		status.Interfaces = interfaces(object, network)
		observeMTU(object, network, now)
		if state.Machine.Accelerator == qemuargs.TCG {
			status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSoftwareEmulation,
				Status: metav1.ConditionTrue, Reason: v1.ReasonTCG, Message: emulated(object.Spec.Architecture)}, now)
		}
		status.SetPhase(v1.Scheduled, now)
		status.SetPhase(v1.Running, now)
		status.EndComplaint(v1.OwnerStart)
	}
	ready := v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse,
		Reason: v1.ReasonGuestNotRunning}
	if (state.State == control.StateRunning || state.State == control.StatePaused) && status.Phase != v1.Running &&
		!object.IsFinal() {
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
		ready.Reason, ready.Message = v1.ReasonGuestFailed,
			"the guest has failed, and its launcher is kept: "+control.Short(state.Failure)
		status.RemoveCondition(v1.ConditionPaused)
	case control.StateShuttingDown:
		ready.Reason, ready.Message = v1.ReasonGuestShuttingDown, "the guest was asked by the ACPI power button to shut down"
	default:
		return
	}
	status.SetCondition(ready, now)
}

// startFailed writes into a VMI's status why its guest does not start. Of a VMI that is deleted, virt-controller
// alone writes why it stays.
func startFailed(object *v1.VirtualMachineInstance, why error, now metav1.Time) {
	if object.DeletionTimestamp != nil {
		return
	}
	object.Status.Complain(v1.ReasonStartFailed, control.Printable(why.Error(), maxMessage), now)
}

// emulated returns the words for what emulation means for a guest.
func emulated(architecture string) string {
	const means = "slow, and not an isolation boundary"
	if architecture != "" && architecture != runtime.GOARCH {
		return fmt.Sprintf("the guest of %s is emulated by QEMU's TCG on a node of %s: %s",
			architecture, runtime.GOARCH, means)
	}
	return "the guest is emulated by QEMU's TCG: " + means
}

// networkFacts is what virt-handler knows of the pod's link behind an interface.
type networkFacts struct {
	link   string
	beside bool     // on a network beside the pod's own
	ips    []string // IPv4 first
	nic    resolve.NIC
	// linkState is of the guest's card; empty if the launcher is of a release that does not change it.
	linkState v1.InterfaceState
}

// networkOf returns what is known of a VMI's networks, by interface. ips are the pod's own addresses.
func networkOf(launcher *sessions.Session, object *v1.VirtualMachineInstance, ips []string) map[string]networkFacts {
	out := map[string]networkFacts{}
	for _, nic := range object.Spec.Domain.Devices.Interfaces {
		if nic.SRIOV != nil {
			continue
		}
		link, err := launcher.Link(wiring.LinkName(object, nic.Name))
		facts, known := factsOf(object, nic.Name, link, err)
		if known && object.Spec.OnPods(nic.Name) {
			facts.ips = ips
		}
		facts.linkState = linkState(launcher, nic.Name)
		out[nic.Name] = facts
	}
	return out
}

// factsOf returns what is known of the link behind an interface after it was read, or err came instead. Nothing is
// known of a link that is not there. Of one that cannot be read for a moment, the status says what was known, unless
// the guest has moved: the link had no part in the guest's start, and does not take that away.
func factsOf(object *v1.VirtualMachineInstance, nic string, link netsetup.Facts, err error) (networkFacts, bool) {
	switch {
	case errors.Is(err, netsetup.ErrNoLink):
		return networkFacts{}, false
	case err != nil:
		return knownFacts(object, nic)
	}
	facts := networkFacts{link: link.Link, nic: resolve.NIC{MTU: link.MTU, MAC: link.MAC}}
	if link.Link != v1.PodLink {
		facts.beside, facts.ips = true, netsetup.GuestAddresses(link)
	}
	return facts, true
}

func interfaces(object *v1.VirtualMachineInstance, network map[string]networkFacts) []v1.NetworkInterfaceStatus {
	var out []v1.NetworkInterfaceStatus
	for _, nic := range object.Spec.Domain.Devices.Interfaces {
		facts := network[nic.Name]
		s := v1.NetworkInterfaceStatus{Name: nic.Name, MAC: guestMAC(object, nic, facts), IPs: facts.ips,
			PodInterfaceName: facts.link, InfoSource: sources(false, facts.beside),
			QueueCount: int32(resolve.Queues(object, nic)), LinkState: facts.linkState}
		if nic.SRIOV != nil { // its queues are the card's
			s.InfoSource, s.QueueCount = sources(false, true), 0
		}
		if len(facts.ips) > 0 {
			s.IP = facts.ips[0]
		}
		if facts.beside {
			s.IPAM = ptr.To(len(facts.ips) > 0)
		}
		out = append(out, s)
	}
	return out
}

// knownFacts returns what the status says of the link behind an interface. It reports false if the status may say it of
// another pod's link, because the guest has moved. The pod's own link needs no status: it has the same name in each
// pod. Addresses are kept if the network gave some to the interface. The guest's own may be among them.
func knownFacts(object *v1.VirtualMachineInstance, nic string) (networkFacts, bool) {
	if object.Spec.OnPods(nic) {
		return networkFacts{link: v1.PodLink}, true
	}
	i := slices.IndexFunc(object.Status.Interfaces, func(s v1.NetworkInterfaceStatus) bool { return s.Name == nic })
	if i < 0 || object.Status.LauncherPod != "" {
		return networkFacts{}, false
	}
	s := object.Status.Interfaces[i]
	facts := networkFacts{link: s.PodInterfaceName, beside: s.IPAM != nil}
	if ptr.Deref(s.IPAM, false) {
		facts.ips = s.IPs
	}
	return facts, true
}

// guestMAC returns the address of a guest's card. A card that is bridged to the pod's network has the address of the
// pod in which the guest began, and a guest that has moved is in another pod: so the address that the status has
// already stays.
func guestMAC(object *v1.VirtualMachineInstance, nic v1.Interface, facts networkFacts) string {
	for _, s := range object.Status.Interfaces {
		if s.Name == nic.Name && s.MAC != "" {
			return s.MAC
		}
	}
	return resolve.MAC(object, nic, facts.nic)
}

// announce makes events of what is new in the status. told is the condition Ready as virt-handler says it, or nil.
func (r *Reconciler) announce(before, object *v1.VirtualMachineInstance, told *v1.VirtualMachineInstanceCondition) {
	if before.Status.Phase != v1.Running && object.Status.Phase == v1.Running {
		r.Events.Eventf(object, nil, corev1.EventTypeNormal, "Started", "Start", "VirtualMachineInstance started.")
	}
	old := before.Status.Condition(v1.ConditionReady)
	isNew := told != nil && (old == nil || old.Reason != told.Reason && old.Message != v1.Terminating(told).Message)
	if isNew && told.Reason == v1.ReasonGuestShuttingDown {
		r.Events.Eventf(object, nil, corev1.EventTypeNormal, "ShuttingDown", "Shutdown", "Signaled Graceful Shutdown")
		if object.DeletionTimestamp != nil { // not if the pod alone is deleted, as a drain does
			r.Events.Eventf(object, nil, corev1.EventTypeNormal, "Deleted", "Shutdown", "Signaled Deletion") // KubeVirt's words
		}
	}
	r.announcePause(before, object, told)
	r.announceTPM(before, object)
	if isNew && silent(told) && !silent(old) {
		r.Events.Eventf(object, nil, corev1.EventTypeWarning, told.Reason, "Probe", "%s", told.Message)
	}
	if s, old := object.Status.Condition(v1.ConditionSynchronized),
		before.Status.Condition(v1.ConditionSynchronized); s != nil && old == nil {
		r.Events.Eventf(object, nil, corev1.EventTypeWarning, "SyncFailed", "Synchronize", "%s", s.Message)
	}
	r.announceCredentials(before, object)
}
