package node

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// world is all that the next step of a VMI depends on.
type world struct {
	// vmi is nil if there is none.
	vmi *v1.VirtualMachineInstance
	// behind: the cache has not seen the last write of the VMI's status.
	behind bool
	// here: the VMI's guest is on this node.
	here bool
	// launcher is the connected launcher of the pod that has the guest, or nil. state is what it reported last.
	launcher *sessions.Session
	state    control.StateReport
	// gone is for how long a launcher that is not connected has not been.
	gone time.Duration
	// ips are the pod's addresses, as far as the kubelet has reported them. foreign is why the launcher's network
	// namespace is not its pod's.
	ips     []string
	foreign error
	// wait is how long a guest that could run waits for the others of its namespace, if any are on their way. unknown is
	// why nobody can tell whether some are.
	wait    time.Duration
	unknown error
}

// look reads what the next step of a VMI depends on.
func (r *Reconciler) look(ctx context.Context, name types.NamespacedName) (world, error) {
	vmi := &v1.VirtualMachineInstance{}
	if err := r.Client.Get(ctx, name, vmi); err != nil {
		r.forget(name)
		if apierrors.IsNotFound(err) {
			return world{}, nil
		}
		return world{}, err
	}
	w := world{vmi: vmi, behind: r.writes.Behind(vmi), here: vmi.Status.NodeName == r.NodeName}
	if w.behind || vmi.IsFinal() {
		return w, nil
	}
	if w.launcher = r.session(vmi); w.launcher == nil {
		w.gone = r.Sessions.Gone(podOf(vmi))
		return w, nil
	}
	w.state = w.launcher.State()
	if w.ips, w.foreign = wiring.Vouched(w.launcher, vmi); w.foreign == nil {
		r.lookAround(ctx, &w)
	}
	return w, nil
}

// forget forgets a VMI that is not in the cache. One whose guest comes from another node is not there yet.
func (r *Reconciler) forget(name types.NamespacedName) {
	r.writes.Forget(name)
	if len(r.Sessions.Of(name)) == 0 {
		r.Starter.Wiring.Forget(name)
	}
}
