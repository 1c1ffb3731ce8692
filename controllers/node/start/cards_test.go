package start

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// TestGuestWaitsUntilItsCardsAreKnown: a guest whose cards nobody can tell apart waits until virt-controller has seen
// the pod with its networks, and no longer.
func TestGuestWaitsUntilItsCardsAreKnown(t *testing.T) {
	n, netns := newNode(t), nodetest.PodNetwork(t)
	n.Dial(t, "vm1").Send(control.EventHello, nodetest.Hello(), nodetest.NetNSFile(t, netns))
	n.Await(t)
	s := n.sessions.Get(nodetest.Pod("a"))
	s.TakeLink(netsetup.Facts{Link: v1.PodLink, Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.5/24")}})
	unknown := fmt.Errorf("%w: two cards", handover.ErrDeviceUnknown)
	for name, tt := range map[string]struct {
		ips  []string
		err  error
		want string
	}{
		"not seen yet":              {nil, unknown, ""},
		"a pod of this name before": {[]string{"10.244.0.9"}, unknown, ""},
		"seen":                      {[]string{"10.244.0.5"}, unknown, "spec.domain.devices.interfaces"},
		"an error that may pass":    {[]string{"10.244.0.5"}, errors.New("not yet"), ""},
		"no error":                  {[]string{"10.244.0.5"}, nil, ""},
		"another architecture":      {nil, errForeign, "spec.architecture"},
	} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Status.LauncherPods = []v1.LauncherPod{{Name: s.Pod.Name, IPs: tt.ips}}
		got := ""
		if errs := hopeless(vmi, s, tt.err); len(errs) > 0 {
			got = errs[0].Field
		}
		if got != tt.want {
			t.Errorf("%s: refused for %q, want %q", name, got, tt.want)
		}
	}
}
