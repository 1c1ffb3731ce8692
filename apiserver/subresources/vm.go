package subresources

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

func (s *Server) start(w http.ResponseWriter, c *call) error {
	o, err := options[v1.StartOptions](s, w, c)
	if err != nil {
		return err
	}
	return s.verb(w, c, o.DryRun, func(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) (*change, error) {
		return started(vm, vmi, o)
	})
}

func (s *Server) stop(w http.ResponseWriter, c *call) error {
	o, err := options[v1.StopOptions](s, w, c)
	if err != nil {
		return err
	}
	return s.verb(w, c, o.DryRun, func(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) (*change, error) {
		return stopped(vm, vmi, o)
	})
}

func (s *Server) restart(w http.ResponseWriter, c *call) error {
	o, err := options[v1.RestartOptions](s, w, c)
	if err != nil {
		return err
	}
	return s.verb(w, c, o.DryRun, func(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) (*change, error) {
		return restarted(vm, vmi, o)
	})
}

// verb changes the VM as decide says. It starts anew if the VM changed meanwhile.
func (s *Server) verb(w http.ResponseWriter, c *call, dryRun []string, decide func(*v1.VirtualMachine, *v1.VirtualMachineInstance) (*change, error)) error {
	isDry, err := dry(dryRun)
	if err != nil {
		return err
	}
	ctx := c.Context()
	if !isDry {
		// A client that goes away must not leave half of the change done: a guest that keeps
		// running would be left with a short grace period.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
		defer cancel()
	}
	for attempt := 1; ; attempt++ {
		err := s.change(ctx, c.object, isDry, dryRun, decide)
		if err == nil {
			w.WriteHeader(http.StatusAccepted)
			return nil
		}
		var changed *behindError
		if !errors.As(err, &changed) {
			return err
		}
		if attempt == attempts {
			return apierrors.NewConflict(vmResource, c.name, changed.err)
		}
	}
}

// behindError means that the VM changed after decide had looked at it.
type behindError struct{ err error }

func (e *behindError) Error() string { return e.err.Error() }

func (s *Server) change(ctx context.Context, o object, isDry bool, dryRun []string, decide func(*v1.VirtualMachine, *v1.VirtualMachineInstance) (*change, error)) error {
	vm, err := s.cluster.machine(ctx, o.namespace, o.name)
	if err != nil {
		return err
	}
	vmi, err := s.cluster.instance(ctx, o.namespace, o.name)
	if apierrors.IsNotFound(err) || err == nil && !controls(vm, vmi) {
		vmi, err = nil, nil
	}
	if err != nil {
		return err
	}
	ch, err := decide(vm, vmi)
	if err != nil {
		return err
	}
	if ch.grace != nil && vmi.Status.Phase == v1.Running && !isDry {
		// The grace period goes first: with the patch, the guest begins to shut down. A node
		// that does not answer must not keep the VM from being stopped.
		err := s.do(ctx, vmi, handlerapi.Grace, seconds(*ch.grace))
		if err != nil && (ch.isEmpty() || !apierrors.IsServiceUnavailable(err)) {
			return err
		}
	}
	if ch.isEmpty() {
		return nil
	}
	err = s.cluster.patch(ctx, vm, ch, dryRun)
	if apierrors.IsConflict(err) {
		return &behindError{err}
	}
	return err
}

// controls says whether the VM is the VMI's controller.
func controls(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	return owner.Controls(v1.VirtualMachineGroupVersionKind.GroupKind(), vm, vmi)
}

// change is the outcome of a verb: a patch of the spec, or requests for virt-controller.
type change struct {
	spec     map[string]any
	requests []v1.VirtualMachineStateChangeRequest
	// grace is the running guest's new grace period, in seconds; nil leaves it as it is.
	grace *int64
}

// isEmpty says whether the VM itself stays as it is.
func (c *change) isEmpty() bool { return c.spec == nil && c.requests == nil }

func vmConflict(vm *v1.VirtualMachine, format string, args ...any) error {
	return apierrors.NewConflict(vmResource, vm.Name, fmt.Errorf(format, args...))
}

// strategySpec sets a run strategy in the field that the VM uses: running or runStrategy.
func strategySpec(vm *v1.VirtualMachine, strategy v1.VirtualMachineRunStrategy) *change {
	if vm.Spec.Running != nil {
		return &change{spec: map[string]any{"running": strategy == v1.RunStrategyAlways}}
	}
	return &change{spec: map[string]any{"runStrategy": strategy}}
}

// request returns a change with requests. A lone Stop replaces earlier requests; any other
// request is refused while earlier ones are pending. PendingRequests leaves out those that are
// done: they stay in the status until virt-controller removes them.
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

// started returns the change that starts a VM; vmi may be nil.
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

// stopped returns the change that stops a VM; vmi may be nil.
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

// restarted returns the change that restarts a VM; vmi may be nil.
func restarted(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, options *v1.RestartOptions) (*change, error) {
	if g := options.GracePeriodSeconds; g != nil && *g < 0 {
		return nil, apierrors.NewBadRequest("gracePeriodSeconds has to be greater or equal to 0")
	}
	if g := options.GracePeriodSeconds; g != nil && *g > 0 {
		return nil, apierrors.NewBadRequest("Only gracePeriod=0 is supported for now")
	}
	if strategy := vm.Strategy(); strategy == v1.RunStrategyHalted || strategy == v1.RunStrategyOnce {
		return nil, vmConflict(vm, "RunStategy %v does not support manual restart requests", strategy) // KubeVirt's spelling
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
