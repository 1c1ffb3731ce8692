// Package vm is virt-controller's side of a VirtualMachine: it makes and
// deletes the VirtualMachineInstance that its run strategy asks for, and tells
// how that fares.
package vm

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeqemu/kubeqemu/api/instancetype/choice"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// action is what is done next.
type action string

const (
	// wait: nothing, until something happens or the plan's time is up.
	wait action = ""
	// start makes the VMI.
	start action = "start"
	// stop deletes the VMI.
	stop action = "stop"
	// enable sets the run strategy to Always: a halted VM was asked to start.
	enable action = "enable"
	// release lets a deleted VM go.
	release action = "release"
)

// plan is what is done next, and what the status remembers besides.
type plan struct {
	action action
	// paused: the guest that is started has its CPUs wait.
	paused bool
	// requests are those that are not done yet.
	requests []v1.VirtualMachineStateChangeRequest
	// startFailure is what the back-off remembers.
	startFailure *v1.VirtualMachineStartFailure
	// chosen is what a start is with, once that is known.
	chosen *choice.Choice
	// after is when to look again, where time alone changes the plan.
	after time.Duration
}

// decide says what a VM's run strategy asks for, given its VMI or nil. It is
// pure: jitter, between 0 and 1, is how much a back-off is lengthened.
//
// What must outlive the VMI (that it failed) is in the plan one step before the
// VMI is deleted, so that it is written before.
func decide(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, now time.Time, jitter float64) plan {
	p := plan{
		requests:     vm.Status.PendingRequests(vmi),
		startFailure: backOff(vm.Status.StartFailure, vm.Strategy(), vmi, now, jitter),
	}
	if halting(vm) {
		p.requests = nil
	}
	counted := p.startFailure != nil && (vm.Status.StartFailure == nil || p.startFailure.LastFailedVMIUID != vm.Status.StartFailure.LastFailedVMIUID)
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
		p.action = wait // for its end, or for the count to be written
	case p.action == start:
		p.paused = p.asked(v1.StartRequest) && p.requests[0].Data[v1.StartRequestDataPausedKey] == v1.StartRequestDataPausedTrue
		p.delay(vm.Strategy(), now)
	}
	return p
}

// halting says whether the VM is Halted since it was looked at last. What it was
// asked before that, a restart or the start after a failure, is not to undo what
// its user said since: of a halted VM a Start makes one that always runs.
func halting(vm *v1.VirtualMachine) bool {
	// One that nobody has looked at has never been anything else.
	seen := vm.Status.DesiredGeneration > 0
	return seen && vm.Strategy() == v1.RunStrategyHalted && vm.Status.RunStrategy != v1.RunStrategyHalted
}

// remove deletes the VMI of a deleted VM first, unless the VMI is to be left alone.
func remove(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) action {
	// The garbage collector takes the owner reference away and then this
	// finalizer.
	orphan := slices.Contains(vm.Finalizers, metav1.FinalizerOrphanDependents)
	if vmi == nil || orphan {
		return release
	}
	return stop
}

// withVMI says what becomes of a VMI, and queues a start after a failure.
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
		// The strategy is remembered once there was a VMI.
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

// asked says whether the next request is of the action. A Stop that is still
// there is meant for the VMI that is there.
func (p *plan) asked(a v1.StateChangeRequestAction) bool {
	return len(p.requests) > 0 && p.requests[0].Action == a
}
