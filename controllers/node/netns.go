package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// errForeignNetNS means that a launcher handed over a network namespace that is not its pod's.
var errForeignNetNS = errors.New("the launcher's network namespace is not its pod's")

// vouched returns the pod's addresses, IPv4 first, if the network namespace has them all. It
// returns none while the API server knows of none. It is pure.
//
// The maker of a network namespace can give it any addresses. So virt-handler reports, and
// dials for users, only the addresses that the kubelet reported of the pod. A guest need not
// wait for those: netsetup.FromFile has made sure that the launcher handed over a namespace of
// a container runtime, and not the host's. Until the addresses are known, nothing of it is
// reported.
func vouched(facts netsetup.Facts, pod []string) ([]string, error) {
	var v4, v6 []string
	for _, ip := range pod {
		want, err := netip.ParseAddr(ip)
		if err != nil {
			return nil, fmt.Errorf("read the pod's address: %w", err)
		}
		has := func(a netip.Prefix) bool { return a.Addr() == want.Unmap() }
		if !slices.ContainsFunc(facts.Addresses, has) {
			return nil, fmt.Errorf("%w: it has not the pod's address %s", errForeignNetNS, want)
		}
		if want.Unmap().Is4() {
			v4 = append(v4, want.Unmap().String())
		} else {
			v6 = append(v6, want.String())
		}
	}
	return append(v4, v6...), nil
}

// vouchedFor calls vouched with the known addresses of a VMI's launcher pod.
func vouchedFor(launcher *sessions.Session, object *v1.VirtualMachineInstance) ([]string, error) {
	pod := object.Status.LauncherPodIPs(launcher.Pod.Name)
	if len(pod) == 0 {
		return nil, nil
	}
	facts, err := launcher.Link(v1.PodLink)
	if err != nil {
		return nil, err
	}
	return vouched(facts, pod)
}

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
	if _, err := vouchedFor(launcher, object); err != nil {
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
