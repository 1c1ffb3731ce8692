package node

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// session returns the connected launcher of a VMI that is on this node, or nil. The VMI's
// status, which virt-controller writes, says which node and which pod have the VMI's guest.
func (r *Reconciler) session(object *v1.VirtualMachineInstance) *sessions.Session {
	if object.Status.NodeName != r.NodeName || len(object.Status.ActivePods) == 0 {
		return nil
	}
	return r.Sessions.Get(podOf(object))
}

// Launcher returns the VMI's launcher, or nil while the launcher's network namespace lacks an
// address that the kubelet reported of the pod. Questions of users and of scrapers go to no
// other launcher.
func (r *Reconciler) Launcher(object *v1.VirtualMachineInstance) *sessions.Session {
	launcher := r.session(object)
	if launcher == nil {
		return nil
	}
	if _, err := wiring.Vouched(launcher, object); err != nil {
		return nil
	}
	return launcher
}

// refuse says in a VMI's status why virt-handler does not serve its launcher. A running guest
// goes on.
func (r *Reconciler) refuse(ctx context.Context, object *v1.VirtualMachineInstance, why error) (ctrl.Result, error) {
	before, now := object.DeepCopy(), metav1.NewTime(r.Clock.Now())
	if object.Status.Phase == v1.Running {
		reportGone(object, "virt-handler does not serve virt-launcher: "+control.Printable(why.Error(), maxMessage), now)
	} else {
		startFailed(object, why, now)
	}
	return ctrl.Result{}, r.writeStatus(ctx, before, object)
}
