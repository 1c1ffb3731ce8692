package subresources

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
)

// defaultUnfreeze is the default of KubeVirt's clients.
const defaultUnfreeze = 5 * time.Minute

// maxUnfreeze is the longest timeout that a request may ask for.
const maxUnfreeze = 365 * 24 * time.Hour

func (s *Server) guestOSInfo(w http.ResponseWriter, c *call) error {
	return query[v1.VirtualMachineInstanceGuestAgentInfo](s, w, c, handlerapi.GuestInfo, askable)
}

func (s *Server) userList(w http.ResponseWriter, c *call) error {
	return query[v1.VirtualMachineInstanceGuestOSUserList](s, w, c, handlerapi.Users, askable)
}

func (s *Server) fileSystemList(w http.ResponseWriter, c *call) error {
	return query[v1.VirtualMachineInstanceFileSystemList](s, w, c, handlerapi.FileSystems, askable)
}

// askable returns an error if a VMI's guest agent cannot be asked. KubeVirt answers 500 then,
// and users of its client look for the words.
func askable(vmi *v1.VirtualMachineInstance) error {
	switch {
	case vmi.Status.Phase != v1.Running:
		return apierrors.NewInternalError(errors.New("VMI is not running"))
	case vmi.Status.Condition(v1.ConditionAgentConnected) == nil:
		return apierrors.NewInternalError(errors.New("VMI does not have guest agent connected"))
	}
	return nil
}

func (s *Server) freeze(w http.ResponseWriter, c *call) error {
	o, err := options[v1.FreezeUnfreezeTimeout](s, w, c)
	if err != nil {
		return err
	}
	timeout := defaultUnfreeze
	if o.UnfreezeTimeout != nil {
		timeout = o.UnfreezeTimeout.Duration
	}
	if timeout < 0 || timeout > maxUnfreeze {
		return apierrors.NewBadRequest(fmt.Sprintf("unfreezeTimeout must be 0s to %s", maxUnfreeze))
	}
	vmi, err := s.cluster.instance(c.Context(), c.namespace, c.name)
	if err != nil {
		return err
	}
	if err := operable(vmi, handlerapi.Freeze); err != nil {
		return err
	}
	// Rounded up to whole seconds: 0 would mean for ever.
	if err := s.do(c.Context(), vmi, handlerapi.Freeze, seconds(int64((timeout+time.Second-1)/time.Second))); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

func (s *Server) unfreeze(w http.ResponseWriter, c *call) error {
	if _, err := options[struct{}](s, w, c); err != nil {
		return err
	}
	return s.operate(w, c, handlerapi.Unfreeze, nil)
}

func (s *Server) softReboot(w http.ResponseWriter, c *call) error {
	if _, err := options[struct{}](s, w, c); err != nil {
		return err
	}
	return s.operate(w, c, handlerapi.SoftReboot, nil)
}

// rebootable returns an error if neither the agent nor ACPI can ask the guest to reboot.
func rebootable(vmi *v1.VirtualMachineInstance) error {
	features := vmi.Spec.Domain.Features
	switch {
	case paused(vmi):
		return vmiConflict(vmi, "VMI is paused")
	case vmi.Status.Condition(v1.ConditionAgentConnected) == nil && features != nil && !ptr.Deref(features.ACPI.Enabled, true):
		return vmiConflict(vmi, "VMI neither have the agent connected nor the ACPI feature enabled") // KubeVirt's words
	}
	return nil
}
