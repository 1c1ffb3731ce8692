package subresources

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
)

// change is what a verb comes to: of the spec, or requests for the controller.
type change struct {
	spec     map[string]any
	requests []v1.VirtualMachineStateChangeRequest
	// grace is how many seconds the guest that runs has, where it is to have less.
	grace *int64
}

// isEmpty says whether the VM itself stays as it is.
func (c *change) isEmpty() bool { return c.spec == nil && c.requests == nil }

func vmConflict(vm *v1.VirtualMachine, format string, args ...any) error {
	return apierrors.NewConflict(vmResource, vm.Name, fmt.Errorf(format, args...))
}

// strategySpec says a run strategy in the way that the VM has it said.
func strategySpec(vm *v1.VirtualMachine, strategy v1.VirtualMachineRunStrategy) *change {
	if vm.Spec.Running != nil {
		return &change{spec: map[string]any{"running": strategy == v1.RunStrategyAlways}}
	}
	return &change{spec: map[string]any{"runStrategy": strategy}}
}

// request adds requests. A lone Stop takes the place of what was asked before;
// anything else waits for that to be done. What is done may still be in the
// status, for virt-controller takes a moment to take it out.
func request(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, requests ...v1.VirtualMachineStateChangeRequest) (*change, error) {
	stop := len(requests) == 1 && requests[0].Action == v1.StopRequest
	if len(vm.Status.PendingRequests(vmi)) > 0 && !stop {
		return nil, vmConflict(vm, "unable to complete request: stop/start already underway")
	}
	return &change{requests: requests}, nil
}

func stopRequest(vmi *v1.VirtualMachineInstance) v1.VirtualMachineStateChangeRequest {
	return v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: &vmi.UID}
}

// started says what starting a VM comes to; vmi may be nil.
func started(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, options *v1.StartOptions) (*change, error) {
	if vmi != nil && !vmi.IsFinal() && vmi.Status.Phase != "" {
		return nil, vmConflict(vm, "VM is already running")
	}
	start := v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest}
	if options.Paused {
		start.Data = map[string]string{v1.StartRequestDataPausedKey: v1.StartRequestDataPausedTrue}
	}
	switch strategy := vm.Strategy(); strategy {
	case v1.RunStrategyHalted:
		if options.Paused {
			return request(vm, vmi, start)
		}
		return strategySpec(vm, v1.RunStrategyAlways), nil
	case v1.RunStrategyManual, v1.RunStrategyRerunOnFailure:
		if vmi == nil || !vmi.IsFinal() {
			return request(vm, vmi, start)
		}
		if strategy == v1.RunStrategyRerunOnFailure && vmi.Status.Phase == v1.Failed {
			return nil, vmConflict(vm, "%s does not support starting VM from failed state", strategy)
		}
		return request(vm, vmi, stopRequest(vmi), start)
	default:
		return nil, vmConflict(vm, "%s does not support manual start requests", strategy)
	}
}

// stopped says what stopping a VM comes to; vmi may be nil.
func stopped(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, options *v1.StopOptions) (*change, error) {
	if options.GracePeriod != nil && *options.GracePeriod < 0 {
		return nil, apierrors.NewBadRequest("gracePeriod must not be negative")
	}
	running := vmi != nil && !vmi.IsFinal()
	grace := options.GracePeriod
	if !running || grace != nil && *grace >= vmi.GracePeriodSeconds() {
		grace = nil
	}
	ch := &change{}
	var err error
	switch strategy := vm.Strategy(); strategy {
	case v1.RunStrategyHalted:
		if !running {
			return nil, vmConflict(vm, "VM is not running")
		}
		if grace == nil {
			return nil, vmConflict(vm, "%s only supports manual stop requests with a shorter graceperiod", strategy)
		}
	case v1.RunStrategyManual, v1.RunStrategyRerunOnFailure:
		if !running {
			return nil, vmConflict(vm, "VM is not running")
		}
		if ch, err = request(vm, vmi, stopRequest(vmi)); err != nil {
			return nil, err
		}
	default:
		ch = strategySpec(vm, v1.RunStrategyHalted)
	}
	ch.grace = grace
	return ch, nil
}

// restarted says what restarting a VM comes to; vmi may be nil.
func restarted(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, options *v1.RestartOptions) (*change, error) {
	if g := options.GracePeriodSeconds; g != nil && *g < 0 {
		return nil, apierrors.NewBadRequest("gracePeriodSeconds has to be greater or equal to 0")
	}
	if g := options.GracePeriodSeconds; g != nil && *g > 0 {
		return nil, apierrors.NewBadRequest("Only gracePeriod=0 is supported for now")
	}
	if strategy := vm.Strategy(); strategy == v1.RunStrategyHalted || strategy == v1.RunStrategyOnce {
		return nil, vmConflict(vm, "RunStategy %v does not support manual restart requests", strategy) // KubeVirt's letters
	}
	if vmi == nil || vmi.IsFinal() {
		return nil, vmConflict(vm, "VM is not running")
	}
	ch, err := request(vm, vmi, stopRequest(vmi), v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest})
	if err != nil {
		return nil, err
	}
	ch.grace = options.GracePeriodSeconds
	return ch, nil
}

// paused says whether a VMI's guest stands still.
func paused(vmi *v1.VirtualMachineInstance) bool {
	c := vmi.Status.Condition(v1.ConditionPaused)
	return c != nil && c.Status == "True"
}

func vmiConflict(vmi *v1.VirtualMachineInstance, text string) error {
	return apierrors.NewConflict(vmiResource, vmi.Name, errors.New(text))
}

func vmiForbidden(vmi *v1.VirtualMachineInstance, text string) error {
	return apierrors.NewForbidden(vmiResource, vmi.Name, errors.New(text))
}

// operable says why an operation cannot be done to a VMI now.
func operable(vmi *v1.VirtualMachineInstance, operation string) error {
	switch {
	case vmi.Status.Phase != v1.Running:
		return vmiConflict(vmi, "VM is not running")
	case operation == handlerapi.Pause && !vmi.Spec.LivenessProbe.KnowsPause():
		return vmiForbidden(vmi, "Pausing VMIs with LivenessProbe is currently not supported") // KubeVirt's words
	case operation == handlerapi.Pause && paused(vmi):
		return vmiConflict(vmi, "VMI is already paused")
	case operation == handlerapi.Unpause && !paused(vmi):
		return vmiConflict(vmi, "VMI is not paused")
	case operation == handlerapi.SoftReboot:
		return rebootable(vmi)
	}
	return nil
}

// attachable says why a VMI has no console, or no screen, to attach to. 400 has
// virtctl try again, and means "not yet".
func attachable(vmi *v1.VirtualMachineInstance, operation string) error {
	devices := vmi.Spec.Domain.Devices
	switch {
	case vmi.IsFinal():
		return vmiConflict(vmi, "VMI is in phase "+string(vmi.Status.Phase))
	case operation == handlerapi.Console && devices.AutoattachSerialConsole != nil && !*devices.AutoattachSerialConsole:
		return vmiConflict(vmi, "No serial consoles are present.")
	case operation == handlerapi.VNC && devices.AutoattachGraphicsDevice != nil && !*devices.AutoattachGraphicsDevice:
		return vmiConflict(vmi, "No graphics devices are present.")
	case vmi.Status.Phase != v1.Running:
		return apierrors.NewBadRequest(fmt.Sprintf("VMI is not running: it is in phase %q", vmi.Status.Phase))
	}
	return nil
}

// seconds is the parameter of handlerapi.Grace.
func seconds(n int64) url.Values {
	return url.Values{handlerapi.Seconds: {strconv.FormatInt(n, 10)}}
}
