// Package vm is virt-controller's side of a VirtualMachine. It makes and deletes the
// VirtualMachineInstance that the run strategy asks for, and reports its state in the VM's
// status.
package vm

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeqemu/kubeqemu/api/instancetype/choice"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// action is the next action.
type action string

const (
	// wait does nothing until an event comes, or the plan's time is up.
	wait action = ""
	// start makes the VMI.
	start action = "start"
	// stop deletes the VMI.
	stop action = "stop"
	// enable sets the run strategy to Always, because a halted VM was asked to start.
	enable action = "enable"
	// release removes a deleted VM's finalizer.
	release action = "release"
)

// plan is the next action, and what the status is to keep.
type plan struct {
	action action
	// paused means that the guest starts with its CPUs stopped.
	paused bool
	// requests are the state change requests that are not done yet.
	requests []v1.VirtualMachineStateChangeRequest
	// startFailure is the back-off's count.
	startFailure *v1.VirtualMachineStartFailure
	// chosen is the instancetype and the preference of a start, once carryOut knows them.
	chosen *choice.Choice
	// unchosen is why there is no choice for a VM that does not start now, once carryOut knows it.
	unchosen error
	// disks are the DataVolumes of a VM without a VMI, once carryOut knows them.
	disks disks
	// moved is what is known of claims whose disks are on other claims, once carryOut is done.
	moved []v1.MovedClaim
	// volumes are those that the template puts on other claims than the guest has.
	volumes volumeUpdate
	// live is what the guest does about changes of the VM, once carryOut is done.
	live v1.Live
	// after is how long to wait where time alone changes the plan.
	after time.Duration
}

// decide returns the plan for a VM with the given VMI, or nil. It is pure. jitter, between 0 and 1, is how much
// a back-off is lengthened.
//
// That a VMI failed must outlive the VMI. So the plan has the failure one step before it deletes the VMI, and
// the status is written in between.
func decide(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, now time.Time, jitter float64) plan {
	p := plan{
		requests:     vm.Status.PendingRequests(vmi),
		startFailure: backOff(vm.Status.StartFailure, vm.Strategy(), vmi, now, jitter),
	}
	if halting(vm) {
		p.requests = nil
	}
	counted := p.startFailure != nil &&
		(vm.Status.StartFailure == nil || p.startFailure.LastFailedVMIUID != vm.Status.StartFailure.LastFailedVMIUID)
	switch {
	case vm.DeletionTimestamp != nil:
		p.action = remove(vm, vmi)
	case vmi != nil:
		p.action = p.withVMI(vm.Strategy(), vmi)
	default:
		p.action = p.withoutVMI(vm)
	}
	switch {
	case p.action == stop && (vmi.DeletionTimestamp != nil || counted && vm.DeletionTimestamp == nil):
		p.action = wait // for the VMI's end, or for the write of the count
	case p.action == start:
		p.paused = p.asked(v1.StartRequest) &&
			p.requests[0].Data[v1.StartRequestDataPausedKey] == v1.StartRequestDataPausedTrue
		p.delay(vm.Strategy(), now)
	}
	return p
}

// halting reports whether the VM has become Halted since the last look. Then older requests are dropped: a
// restart, or the start after a failure. Otherwise a Start would make the halted VM run always, against its
// user's newer wish.
func halting(vm *v1.VirtualMachine) bool {
	// A VM that was never looked at has had no other strategy.
	seen := vm.Status.DesiredGeneration > 0
	return seen && vm.Strategy() == v1.RunStrategyHalted && vm.Status.RunStrategy != v1.RunStrategyHalted
}

// remove returns the next action for a deleted VM. Its VMI is deleted first, unless the VMI is to be left
// alone.
func remove(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) action {
	// With this finalizer the garbage collector removes the VMI's owner reference, and then
	// the finalizer.
	orphan := slices.Contains(vm.Finalizers, metav1.FinalizerOrphanDependents)
	if vmi == nil || orphan {
		return release
	}
	return stop
}

// withVMI returns the next action for a VM with a VMI, and adds a Start request after a failure.
func (p *plan) withVMI(strategy v1.VirtualMachineRunStrategy, vmi *v1.VirtualMachineInstance) action {
	stopped := p.asked(v1.StopRequest)
	switch strategy {
	case v1.RunStrategyAlways:
		if stopped || vmi.IsFinal() {
			return stop
		}
	case v1.RunStrategyRerunOnFailure:
		switch {
		case stopped || vmi.Status.Phase == v1.Succeeded:
			return stop
		case vmi.Status.Phase == v1.Failed && vmi.DeletionTimestamp == nil:
			if p.asked(v1.StartRequest) {
				return stop
			}
			p.requests = append(p.requests, v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest})
		}
	case v1.RunStrategyManual:
		if stopped || vmi.IsFinal() && p.asked(v1.StartRequest) {
			return stop
		}
	case v1.RunStrategyHalted:
		return stop
	}
	return wait
}

func (p *plan) withoutVMI(vm *v1.VirtualMachine) action {
	switch vm.Strategy() {
	case v1.RunStrategyAlways, v1.RunStrategyOnce:
		return start
	case v1.RunStrategyRerunOnFailure:
		// The status has the strategy once there was a VMI.
		if p.asked(v1.StartRequest) || vm.Status.RunStrategy != v1.RunStrategyRerunOnFailure {
			return start
		}
	case v1.RunStrategyManual:
		if p.asked(v1.StartRequest) {
			return start
		}
	case v1.RunStrategyHalted:
		if p.asked(v1.StartRequest) {
			return enable
		}
	}
	return wait
}

// asked reports whether the first request has this action. A Stop that is not done yet is for the present VMI.
func (p *plan) asked(a v1.StateChangeRequestAction) bool {
	return len(p.requests) > 0 && p.requests[0].Action == a
}
