package wiring

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
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

// Vouched returns the addresses of a VMI's launcher pod, as far as the kubelet has reported them, if the launcher's
// network namespace has them all. It returns none while the API server knows of none.
func Vouched(launcher *sessions.Session, object *v1.VirtualMachineInstance) ([]string, error) {
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
