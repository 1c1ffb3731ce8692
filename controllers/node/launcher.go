package node

import (
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/node/wiring"
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

// podOf returns the name of the launcher pod that has the VMI's guest.
func podOf(object *v1.VirtualMachineInstance) types.NamespacedName {
	return types.NamespacedName{Namespace: object.Namespace, Name: object.LauncherPod()}
}
