package start

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// refusal is an error of a start that no later attempt mends.
type refusal struct{ field.ErrorList }

func (r refusal) Error() string { return r.ToAggregate().Error() }

// refused returns a refusal, or nil if there are no errors.
func refused(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return refusal{errs}
}

// HandOver wires the pod's network and hands a Machine over to the launcher. Its error is a refusal if the launcher
// can never run the VM. Until the network is wired, nothing has changed.
func (s *Starter) HandOver(ctx context.Context, vmi *v1.VirtualMachineInstance, launcher *sessions.Session,
	request *control.StartRequest, links map[string]netsetup.Facts) error {
	if err := refused(unfit(request, launcher)); err != nil {
		return err
	}
	connections, errs := wiring.Plan(vmi, &request.Machine, links)
	if len(errs) > 0 {
		return refusal{errs}
	}
	if err := s.lockMemory(vmi, launcher); err != nil {
		return cmp.Or(refused(lockRefused(vmi, err)), err)
	}
	wires, err := s.Wiring.Wire(ctx, vmi, launcher, connections)
	if err != nil {
		return err
	}
	defer wires.Close()
	request.DHCP, request.IPv6 = wires.Leases, wires.IPv6
	if err := launcher.Call(ctx, control.CommandStart, *request, nil, wires.Files...); err != nil {
		err = fmt.Errorf("hand the machine to the launcher: %w", err)
		return cmp.Or(refused(lacking(err)), err) // it may not know what the guest is told of its network
	}
	return nil
}

// unfit returns why a launcher cannot run the VM, before anything is wired. The launcher comes
// with the pod's image, so that repeating the start would not help.
func unfit(request *control.StartRequest, launcher *sessions.Session) field.ErrorList {
	errs := lacking(launcher.Takes(control.CommandStart, request))
	if err := control.CheckMachine(&request.Machine); err != nil {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "domain"), err.Error()))
	}
	return errs
}

// lacking returns what an error says that a launcher does not know, and what to do.
func lacking(err error) field.ErrorList {
	var lacks sessions.LackingError
	if !errors.As(err, &lacks) {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("spec"),
		fmt.Sprintf("needs %s, which this pod's virt-launcher does not know: "+
			"delete the VMI and make it anew, or restart its VM", lacks.String()))}
}
