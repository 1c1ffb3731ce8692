package vm

import (
	"net/netip"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// failure is why a step failed.
type failure struct{ reason, message string }

// ofDataVolume reports whether the failure is that a disk of the VM's templates is missing, and cannot be made
// or filled.
func (f *failure) ofDataVolume() bool {
	return f != nil &&
		slices.Contains([]string{v1.ReasonFailedDataVolumeCreate, v1.ReasonUnauthorizedDataVolumeCreate,
			v1.ReasonDataVolumeFailed}, f.reason)
}

// observe returns the status of a VM after a plan was carried out. vmi is the VM's VMI after that, or nil.
// failed is the failure, or nil. It is pure.
func observe(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, p plan, failed *failure,
	now metav1.Time) v1.VirtualMachineStatus {
	status := *vm.Status.DeepCopy()
	status.Created = vmi != nil
	// The VMI may end before the next look. So a Start is done here, as soon as its VMI is made.
	status.StateChangeRequests = p.requests
	status.StateChangeRequests = status.PendingRequests(vmi)
	status.StartFailure = p.startFailure
	status.MovedClaims, status.VolumeUpdateState = p.moved, p.volumes.state()
	if p.chosen != nil {
		status.InstancetypeRef, status.PreferenceRef = p.chosen.Refs()
	}
	status.Conditions = conditions(vm, vmi, p, failed, now)
	ready := status.Condition(v1.ConditionReady)
	status.Ready = ready != nil && ready.Status == metav1.ConditionTrue
	status.Guest = placeOf(vmi)
	status.PrintableStatus = printable(vm, vmi, p, failed)
	status.DesiredGeneration = vm.Generation
	status.ObservedGeneration = carriedOut(vm, vmi, p)
	switch strategy := vm.Strategy(); {
	case vmi != nil || strategy != v1.RunStrategyRerunOnFailure:
		status.RunStrategy = strategy
	case status.RunStrategy == v1.RunStrategyHalted:
		status.RunStrategy = "" // so that halting notices when the VM becomes Halted again
	}
	return status
}

// placeOf returns where the guest of a VMI runs, or nil if it does not run. A node writes the address: what is none is
// left out.
func placeOf(vmi *v1.VirtualMachineInstance) *v1.GuestPlace {
	if vmi == nil || vmi.Status.Phase != v1.Running || vmi.Status.NodeName == "" {
		return nil
	}
	place := &v1.GuestPlace{NodeName: vmi.Status.NodeName}
	if nics := vmi.Status.Interfaces; len(nics) > 0 {
		if address, err := netip.ParseAddr(nics[0].IP); err == nil {
			place.IP = address.WithZone("").String()
		}
	}
	return place
}

// carriedOut returns the generation of the VM's spec that is carried out. If the present guest is not as the
// spec says, that is the generation from which the guest was made. A change of the template's labels and
// annotations needs no restart. The next restart carries it out, as in KubeVirt.
func carriedOut(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, p plan) int64 {
	if vmi != nil && !(p.live.IsCurrent() && len(p.volumes.pending) == 0) {
		if made, err := strconv.ParseInt(vmi.Annotations[v1.VMGenerationAnnotation], 10, 64); err == nil {
			return made
		}
	}
	return vm.Generation
}

// conditions returns the conditions of the VMI, if there is one, and the VM's own.
func conditions(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, p plan, failed *failure,
	now metav1.Time) []v1.VirtualMachineInstanceCondition {
	var list []v1.VirtualMachineInstanceCondition
	set := func(c v1.VirtualMachineInstanceCondition) {
		c.LastTransitionTime = now
		if old := vm.Status.Condition(c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		list = append(list, c)
	}
	switch {
	case vmi == nil:
		set(v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse,
			Reason:  v1.ReasonVMINotExists,
			Message: "there is no VirtualMachineInstance"})
	case vmi.Status.Condition(v1.ConditionReady) == nil:
		set(v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse,
			Reason:  v1.ReasonVMIConditionMissing,
			Message: "the VirtualMachineInstance was just made"})
	}
	if vmi != nil {
		list = append(list, copied(vmi.Status.Conditions)...)
	} else if len(p.disks.waits) > 0 {
		set(v1.VirtualMachineInstanceCondition{Type: v1.ConditionProvisioning, Status: metav1.ConditionTrue,
			Reason: v1.ReasonDataVolumeNotReady, Message: p.disks.waits.String()})
	}
	if failed == nil {
		failed = notStarted(vm, vmi, p.startFailure)
	}
	if failed != nil {
		set(v1.VirtualMachineInstanceCondition{Type: v1.ConditionFailure, Status: metav1.ConditionTrue, Reason: failed.reason,
			Message: failed.message})
	}
	if why := p.live.RestartRequired(vm); why != "" {
		set(v1.VirtualMachineInstanceCondition{Type: v1.ConditionRestartRequired, Status: metav1.ConditionTrue,
			Reason: v1.ReasonTemplateChanged, Message: bounded(why)})
	}
	if c := p.volumes.condition(vmi); c != nil {
		set(*c)
	}
	for i := range list {
		list[i].ObservedGeneration = vm.Generation
	}
	return list
}

// notStarted returns why the last VMI failed before its guest ran, or nil. The VMI is gone while the VM waits
// before the next start. So the reason stays in the VM's status until a guest runs, or until there is another
// reason. A node writes the reason. So it is bounded.
func notStarted(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance,
	counted *v1.VirtualMachineStartFailure) *failure {
	if counted == nil {
		return nil
	}
	if vmi != nil && vmi.UID == counted.LastFailedVMIUID {
		message := "the VirtualMachineInstance failed before its guest ran"
		if c := vmi.Status.Condition(v1.ConditionReady); c != nil && c.Message != "" {
			message += ": " + c.Message
		}
		return &failure{v1.ReasonGuestNotStarted, bounded(message)}
	}
	if old := vm.Status.Condition(v1.ConditionFailure); old != nil && old.Reason == v1.ReasonGuestNotStarted {
		return &failure{old.Reason, old.Message}
	}
	return nil
}

// Bounds of a VMI's conditions in a VM's status: their number, and their texts in bytes.
const (
	maxCopied  = 32
	maxMessage = 4 << 10
	maxWord    = 316 // of a condition's type, in Kubernetes; reasons are shorter
)

// copied returns the VMI's conditions for the VM's status. A node writes them, and an intruder on the node may
// write anything. So copied bounds them, and drops a condition with the type of one of the VM's own.
func copied(conditions []v1.VirtualMachineInstanceCondition) []v1.VirtualMachineInstanceCondition {
	own := []v1.ConditionType{v1.ConditionFailure, v1.ConditionRestartRequired, v1.ConditionVolumesChange,
		v1.ConditionManualRecoveryRequired}
	var list []v1.VirtualMachineInstanceCondition
	for _, c := range conditions {
		if len(list) == maxCopied || slices.Contains(own, c.Type) || len(c.Type) > maxWord || len(c.Reason) > maxWord {
			continue
		}
		c.Message = bounded(c.Message)
		list = append(list, c)
	}
	return list
}

// bounded returns a message, of which it cuts off what exceeds maxMessage bytes.
func bounded(message string) string {
	if len(message) > maxMessage {
		return control.Cut(message, maxMessage) + "…"
	}
	return message
}

// printable returns the VM's state in KubeVirt's words: the first that applies. A VM whose VMI cannot be made,
// as without its instancetype, is Stopped. Its condition Failure says why.
func printable(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, p plan,
	failed *failure) v1.VirtualMachinePrintableStatus {
	ended := vmi == nil || vmi.IsFinal()
	switch {
	case vm.DeletionTimestamp != nil:
		return v1.VirtualMachineStatusTerminating
	case vmi == nil && (len(p.disks.failed) > 0 || failed.ofDataVolume()):
		return v1.VirtualMachineStatusDataVolumeError
	case vmi == nil && len(p.disks.waits) > 0:
		return v1.VirtualMachineStatusProvisioning
	case ended && p.startFailure != nil:
		return v1.VirtualMachineStatusCrashLoopBackOff
	case ended:
		return v1.VirtualMachineStatusStopped
	case vmi.DeletionTimestamp != nil || p.action == stop:
		return v1.VirtualMachineStatusStopping
	case migrates(vmi):
		return v1.VirtualMachineStatusMigrating
	case isTrue(vmi, v1.ConditionPaused):
		return v1.VirtualMachineStatusPaused
	case vmi.Status.Phase == v1.Running:
		return v1.VirtualMachineStatusRunning
	}
	if w, ok := waiting(vmi); ok {
		return w
	}
	switch vmi.Status.Phase {
	case "", v1.Pending, v1.Scheduling, v1.Scheduled:
		return v1.VirtualMachineStatusStarting
	}
	return v1.VirtualMachineStatusUnknown
}

// migrates reports whether the guest is being copied to another node.
func migrates(vmi *v1.VirtualMachineInstance) bool {
	m := vmi.Migration()
	return m != nil && m.StartTimestamp != nil
}

// waiting returns KubeVirt's word for what a VMI that does not run yet waits for, and reports whether there is
// one.
func waiting(vmi *v1.VirtualMachineInstance) (v1.VirtualMachinePrintableStatus, bool) {
	for _, w := range []struct {
		kind   v1.ConditionType
		status metav1.ConditionStatus
		reason string
		word   v1.VirtualMachinePrintableStatus
	}{
		{v1.ConditionSynchronized, metav1.ConditionFalse, v1.ReasonPvcNotFound, v1.VirtualMachineStatusPvcNotFound},
		{v1.ConditionSynchronized, metav1.ConditionFalse, v1.ReasonDataVolumeFailed, v1.VirtualMachineStatusDataVolumeError},
		{v1.ConditionPodScheduled, metav1.ConditionFalse, v1.ReasonUnschedulable, v1.VirtualMachineStatusUnschedulable},
		{v1.ConditionProvisioning, metav1.ConditionTrue, "", v1.VirtualMachineStatusProvisioning},
		{v1.ConditionSynchronized, metav1.ConditionFalse, v1.ReasonPVCNotReady,
			v1.VirtualMachineStatusWaitingForVolumeBinding},
		{v1.ConditionSynchronized, metav1.ConditionFalse, v1.ReasonMountFailed,
			v1.VirtualMachineStatusWaitingForVolumeBinding},
		{v1.ConditionSynchronized, metav1.ConditionFalse, v1.ReasonFailedCreate, v1.VirtualMachineStatusUnschedulable},
		{v1.ConditionSynchronized, metav1.ConditionFalse, v1.ReasonErrImagePull, v1.VirtualMachineStatusErrImagePull},
		{v1.ConditionSynchronized, metav1.ConditionFalse, v1.ReasonImagePullBackOff, v1.VirtualMachineStatusImagePullBackOff},
	} {
		c := vmi.Status.Condition(w.kind)
		if c != nil && c.Status == w.status && (w.reason == "" || c.Reason == w.reason) {
			return w.word, true
		}
	}
	return "", false
}

func isTrue(vmi *v1.VirtualMachineInstance, kind v1.ConditionType) bool {
	c := vmi.Status.Condition(kind)
	return c != nil && c.Status == metav1.ConditionTrue
}
