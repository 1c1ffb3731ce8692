package node

import (
	"context"
	"slices"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// linkPatience is the wait after a launcher has not taken CommandSetLink: it refuses while the guest is being migrated.
const linkPatience = 10 * time.Second

// setLinks asks the launcher to give the links of the guest's cards the states that the spec says. It returns the
// wait until a failed attempt is repeated, or 0. The
// launcher's Machine has the present states.
func (r *Reconciler) setLinks(ctx context.Context, vmi *v1.VirtualMachineInstance,
	launcher *sessions.Session) (again time.Duration) {
	state := launcher.State()
	if state.StartedAt == nil || state.State == control.StateExited {
		return 0
	}
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		is, wanted := linkState(launcher, nic.Name), nic.Link()
		if is == "" || is == wanted {
			continue
		}
		log := ctrl.LoggerFrom(ctx).WithValues("interface", nic.Name, "state", wanted)
		request := control.SetLinkRequest{NIC: nic.Name, Down: wanted == v1.LinkDown}
		if err := launcher.Call(ctx, control.CommandSetLink, request, nil); err != nil {
			log.Info("the launcher does not change a link", "error", control.Short(err.Error()))
			again = linkPatience
			continue
		}
		log.Info("the launcher changed a link")
	}
	return again
}

// linkState returns the state of the link of a guest's card; empty if the launcher does not tell.
func linkState(launcher *sessions.Session, nic string) v1.InterfaceState {
	m := launcher.State().Machine
	if m == nil {
		return ""
	}
	i := slices.IndexFunc(m.NICs, func(n qemuargs.NIC) bool { return n.Name == nic })
	switch {
	case i < 0 || m.NICs[i].HostDevice != "":
		return ""
	case m.NICs[i].Down:
		return v1.LinkDown
	}
	return v1.LinkUp
}
