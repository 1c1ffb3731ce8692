package node

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/lookup"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// staleAfter is how long a launcher may be connected before its VMI must be known here: the launcher
// of a new VMI dials before virt-controller has written the VMI's node. It is also the time between
// two looks at one launcher, and so bounds what launchers can make virt-handler ask.
const staleAfter = 10 * time.Second

// endStale ends the guests of launchers whose VMI has ended, or is gone. A VMI is there, and has not
// ended, until its launcher pod has ended, or is gone. So the guest of such a launcher ran on without its
// pod: Kubernetes deletes the pods of a node that is out of service by force. Another guest may run on the
// same disks by now. The kubelet would give this guest its grace period, and virt-handler gives it none.
//
// The API server says that the VMI is gone, not the cache: absence of information is never death.
// endStale returns how long to wait for the next look, or 0.
func (r *Reconciler) endStale(ctx context.Context, vmi types.NamespacedName) time.Duration {
	launchers := r.Sessions.Of(vmi)
	left := func(now *v1.VirtualMachineInstance) {
		launchers = slices.DeleteFunc(launchers, func(l *sessions.Session) bool {
			return l.State().State == control.StateExited || owns(now, l)
		})
	}
	if len(launchers) == 0 {
		return 0
	}
	cached, err := lookup.VMI(ctx, r.Client, vmi)
	if err != nil {
		return 0
	}
	if left(cached); len(launchers) == 0 {
		return 0
	}
	again := staleAfter // until the launcher has ended
	launchers = slices.DeleteFunc(launchers, func(l *sessions.Session) bool {
		wait := l.NextCheck(r.Clock.Now(), staleAfter)
		again = min(again, max(wait, time.Second))
		return wait > 0
	})
	if len(launchers) == 0 {
		return again
	}
	log := ctrl.LoggerFrom(ctx)
	now, err := lookup.VMI(ctx, r.Live, vmi)
	if err != nil {
		log.Info("cannot tell whether a VMI is gone", "reason", control.Short(err.Error()))
		return staleAfter
	}
	if now != nil {
		for _, launcher := range launchers {
			r.depart(now, launcher) // the guest may run on another node since virt-handler was restarted
		}
	}
	left(now)
	for _, launcher := range launchers {
		log.Info("end a guest at once: its VMI has ended, or is gone", "pod", launcher.Pod.String())
		if err := launcher.EndAtOnce(ctx); err != nil {
			log.Info("a launcher did not end its guest", "pod", launcher.Pod.String(), "reason", control.Short(err.Error()))
		}
	}
	return staleAfter
}

// owns reports whether a launcher is one of a VMI that has not ended. The VMI may be nil.
func owns(vmi *v1.VirtualMachineInstance, launcher *sessions.Session) bool {
	return vmi != nil && !vmi.IsFinal() && slices.Contains(vmi.LauncherPodNames(), launcher.Pod.Name)
}
