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

// errForeignNetNS means that a launcher handed over another network namespace
// than its pod's.
var errForeignNetNS = errors.New("the launcher's network namespace is not its pod's")

// vouched returns the pod's addresses, IPv4 first, once it is known that the
// network namespace has them; none while the API server knows of none. It is pure.
//
// Whoever makes a network namespace gives it any address, and any number of them:
// what virt-handler reports of it, and what is dialed for users, is what the
// kubelet reported of the pod. A guest need not wait for that. What a launcher
// hands over before is a namespace of a container runtime's (netsetup.FromFile),
// and not the host's; nothing is said of it until it is vouched for.
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

// vouchedFor calls vouched with the addresses that are known of a VMI's launcher.
func vouchedFor(launcher *sessions.Session, object *v1.VirtualMachineInstance) ([]string, error) {
	return vouched(launcher.Links[sessions.PodLink], object.Status.LauncherPodIPs(launcher.Pod.Name))
}

// session returns the launcher on the line of a VMI whose status, written by
// virt-controller, says that its pod is this one and on this node.
func (r *Reconciler) session(object *v1.VirtualMachineInstance) *sessions.Session {
	if object.Status.NodeName != r.NodeName || len(object.Status.ActivePods) == 0 {
		return nil
	}
	for _, pod := range pods(object) {
		if launcher := r.Sessions.Get(pod); launcher != nil {
			return launcher
		}
	}
	return nil
}

// Launcher returns the VMI's launcher, or nil while the launcher's network namespace
// is not known to be its pod's. Questions of users and of scrapers go to no other
// launcher.
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

// refuse says of a VMI why its launcher is not served. What runs goes on.
func (r *Reconciler) refuse(ctx context.Context, object *v1.VirtualMachineInstance, why error) (ctrl.Result, error) {
	before, now := object.DeepCopy(), metav1.NewTime(r.Clock.Now())
	if object.Status.Phase == v1.Running {
		reportGone(object, now)
	} else {
		object.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionSynchronized, Status: metav1.ConditionFalse,
			Reason: v1.ReasonStartFailed, Message: control.Printable(why.Error(), maxMessage)}, now)
	}
	written, err := r.writeStatus(ctx, before, object)
	if written {
		r.announce(before, object)
	}
	return ctrl.Result{}, err
}
