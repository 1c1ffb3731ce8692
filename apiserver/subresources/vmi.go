package subresources

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
)

func (s *Server) pause(w http.ResponseWriter, c *call) error {
	o, err := options[v1.PauseOptions](s, w, c)
	if err != nil {
		return err
	}
	return s.operate(w, c, handlerapi.Pause, o.DryRun)
}

func (s *Server) unpause(w http.ResponseWriter, c *call) error {
	o, err := options[v1.UnpauseOptions](s, w, c)
	if err != nil {
		return err
	}
	return s.operate(w, c, handlerapi.Unpause, o.DryRun)
}

func (s *Server) reset(w http.ResponseWriter, c *call) error {
	if _, err := options[struct{}](s, w, c); err != nil {
		return err
	}
	return s.operate(w, c, handlerapi.Reset, nil)
}

// operate has virt-handler carry out an operation on a VMI, unless dryRun asks for a dry run.
func (s *Server) operate(w http.ResponseWriter, c *call, operation string, dryRun []string) error {
	isDry, err := dry(dryRun)
	if err != nil {
		return err
	}
	vmi, err := s.cluster.instance(c.Context(), c.namespace, c.name)
	if err != nil {
		return err
	}
	if err := operable(vmi, operation); err != nil {
		return err
	}
	if !isDry {
		if err := s.do(c.Context(), vmi, operation, nil); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// do sends an operation to the virt-handler of a VMI's node.
func (s *Server) do(ctx context.Context, vmi *v1.VirtualMachineInstance, operation string, parameters url.Values) error {
	to, err := s.target(ctx, vmi)
	if err != nil {
		return err
	}
	return answered(vmi, s.Handlers.Do(ctx, to, operation, parameters))
}

func (s *Server) target(ctx context.Context, vmi *v1.VirtualMachineInstance) (handlerapi.Target, error) {
	address, err := s.cluster.handlerAddress(ctx, vmi.Status.NodeName)
	return handlerapi.Target{Address: address, Node: vmi.Status.NodeName, Namespace: vmi.Namespace, Name: vmi.Name, UID: string(vmi.UID)}, err
}

// answered turns virt-handler's answer into an error of the API, or nil.
func answered(vmi *v1.VirtualMachineInstance, err error) error {
	var said *handlerapi.Error
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &said):
		return apierrors.NewServiceUnavailable(err.Error())
	case said.Code == http.StatusConflict:
		return vmiConflict(vmi, said.Text)
	case said.Code == http.StatusTooManyRequests:
		return callers.TooMany(said.Text)
	case said.Code == http.StatusServiceUnavailable, said.Code == http.StatusNotFound:
		return apierrors.NewServiceUnavailable(said.Text)
	}
	return apierrors.NewInternalError(said)
}

// paused says whether a VMI's guest is paused.
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

// operable returns an error if an operation cannot be done to a VMI now.
func operable(vmi *v1.VirtualMachineInstance, operation string) error {
	switch {
	case vmi.Status.Phase != v1.Running && (operation == handlerapi.Unpause || operation == handlerapi.Unfreeze || operation == handlerapi.Reset):
		return vmiConflict(vmi, "VMI is not running") // KubeVirt's words
	case vmi.Status.Phase != v1.Running:
		return vmiConflict(vmi, "VM is not running") // KubeVirt's words
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

// attachable returns an error if a VMI has no console, or no screen, to attach to. The codes are KubeVirt's, but for a VMI that
// has ended: after a 400, which means "not yet", virtctl tries again.
func attachable(vmi *v1.VirtualMachineInstance, operation string) error {
	devices := vmi.Spec.Domain.Devices
	switch {
	case operation == handlerapi.Console && devices.AutoattachSerialConsole != nil && !*devices.AutoattachSerialConsole:
		return apierrors.NewBadRequest("No serial consoles are present.") // KubeVirt's words
	case operation == handlerapi.VNC && devices.AutoattachGraphicsDevice != nil && !*devices.AutoattachGraphicsDevice:
		return apierrors.NewBadRequest("No graphics devices are present.") // KubeVirt's words
	case vmi.IsFinal():
		return vmiConflict(vmi, "VMI is in phase "+string(vmi.Status.Phase))
	case vmi.Status.Phase != v1.Running:
		return apierrors.NewBadRequest(fmt.Sprintf("VMI is not running: it is in phase %q", vmi.Status.Phase))
	}
	return nil
}

// seconds is the parameter of handlerapi.Grace and handlerapi.Freeze.
func seconds(n int64) url.Values {
	return url.Values{handlerapi.Seconds: {strconv.FormatInt(n, 10)}}
}
