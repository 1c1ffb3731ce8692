package node

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// TestLook: what the next step of a VMI depends on is what is there. No launcher is looked at if no step would depend
// on it.
func TestLook(t *testing.T) {
	pod := types.NamespacedName{Namespace: "ns", Name: v1.LauncherPodName("vm", "u", v1.FirstPod)}
	unknown := func(vmi *v1.VirtualMachineInstance) { vmi.Status.LauncherPods[0].IPs = nil }
	foreign := func(vmi *v1.VirtualMachineInstance) { vmi.Status.LauncherPods[0].IPs = []string{"10.244.0.6"} }
	ended := func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Failed }
	elsewhere := func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = "n2" }
	some := &sessions.Session{}
	for name, c := range map[string]struct {
		change func(*v1.VirtualMachineInstance)
		away   bool // the launcher is not connected
		behind bool
		want   world // a launcher, an error and a time stand for any
	}{
		"it is served":          {want: world{here: true, launcher: some, ips: []string{"10.244.0.5"}}},
		"not connected":         {away: true, want: world{here: true, gone: 1}},
		"the cache is behind":   {behind: true, want: world{behind: true, here: true}},
		"it has ended":          {change: ended, want: world{here: true}},
		"on another node":       {change: elsewhere},
		"no address is known":   {change: unknown, want: world{here: true, launcher: some}},
		"another pod's network": {change: foreign, want: world{here: true, launcher: some, foreign: errors.New("any")}},
	} {
		vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "u"}}
		vmi.Status = v1.VirtualMachineInstanceStatus{NodeName: "n1", ActivePods: map[types.UID]string{"p": "n1"},
			LauncherPods: []v1.LauncherPod{{Name: pod.Name, IPs: []string{"10.244.0.5"}}}}
		if c.change != nil {
			c.change(vmi)
		}
		launcher := reporting(pod, control.StateReport{State: control.StateRunning})
		launcher.TakeLink(netsetup.Facts{Link: v1.PodLink, Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.5/24")}})
		r := &Reconciler{Client: fake.NewClientBuilder().WithScheme(nodetest.Scheme(t)).WithObjects(vmi).Build(),
			Clock: clock.RealClock{}, NodeName: "n1", Sessions: connected(t, launcher)}
		if c.away {
			r.Sessions = connected(t)
		}
		key := client.ObjectKeyFromObject(vmi)
		if c.behind {
			after := vmi.DeepCopy()
			if err := r.Client.Get(t.Context(), key, vmi); err != nil {
				t.Fatal(err)
			}
			after.ResourceVersion = "later"
			r.writes.Note(vmi, after)
		}
		got, err := r.look(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if got.vmi == nil || got.behind != c.want.behind || got.here != c.want.here || !slices.Equal(got.ips, c.want.ips) ||
			(got.launcher == nil) != (c.want.launcher == nil) || (got.foreign == nil) != (c.want.foreign == nil) ||
			(got.gone > 0) != (c.want.gone > 0) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestLookForgetsWhatIsGone: of a VMI that is gone nothing is kept.
func TestLookForgetsWhatIsGone(t *testing.T) {
	name := types.NamespacedName{Namespace: "ns", Name: "vm"}
	r := &Reconciler{Client: fake.NewClientBuilder().WithScheme(nodetest.Scheme(t)).Build(), Sessions: connected(t),
		Starter: newStarter()}
	before := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", ResourceVersion: "1"}}
	after := before.DeepCopy()
	after.ResourceVersion = "2"
	r.writes.Note(before, after)
	if w, err := r.look(t.Context(), name); w.vmi != nil || err != nil {
		t.Errorf("%+v, %v", w, err)
	}
	if r.writes.Behind(before) {
		t.Error("the write of a VMI that is gone is kept")
	}
}
