package node

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// holdPatience is the wait after a launcher has not taken CommandHoldPings.
const holdPatience = 10 * time.Second

// holdPings asks the launcher to answer guestAgentPing probes by itself, or not to, if that has changed. It returns
// the wait until a failed attempt is repeated, or 0.
func (r *Reconciler) holdPings(ctx context.Context, vmi *v1.VirtualMachineInstance,
	launcher *sessions.Session) (again time.Duration) {
	state, agent := launcher.State(), cmp.Or(launcher.Agent(), &control.AgentReport{})
	hold := vmi.PausesGuestAgentProbes()
	if state.StartedAt == nil || state.State == control.StateExited || !withAgent(state) || agent.PingsHeld == hold {
		return 0
	}
	log := ctrl.LoggerFrom(ctx).WithValues("hold", hold)
	if err := launcher.Call(ctx, control.CommandHoldPings, control.HoldPingsRequest{Hold: hold}, nil); err != nil {
		log.Info("the launcher does not change how it answers guestAgentPing probes", "error", control.Short(err.Error()))
		return holdPatience
	}
	log.Info("the launcher was told whether to answer guestAgentPing probes by itself")
	return 0
}

// announcePing makes KubeVirt's event of a failed guestAgentPing probe. The event's recorder
// counts repetitions in one event.
func (r *Reconciler) announcePing(vmi *v1.VirtualMachineInstance, launcher *sessions.Session) {
	if vmi.Status.Phase == v1.Running && vmi.Spec.PingsGuestAgent() && launcher.NewPingFailure(r.Clock.Now()) {
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "GuestAgentPingFailed", "Probe",
			"GuestAgentPing probe failed for VMI %s", vmi.Name)
	}
}
