package node

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestOnlyThePodsAddressesAreReported: a guest runs in a namespace with the address 10.244.0.5, and with one more that
// no pod has.
func TestOnlyThePodsAddressesAreReported(t *testing.T) {
	started := time.Unix(1000, 0)
	pod := types.NamespacedName{Namespace: "ns", Name: v1.LauncherPodName("vm", "u1", v1.FirstPod)}
	tests := []struct {
		name  string
		pods  []v1.LauncherPod
		phase v1.VirtualMachineInstancePhase
		ip    string
		says  string
	}{
		{"not known yet", nil, v1.Scheduled, "", ""},
		{"another pod's is known", []v1.LauncherPod{{Name: "other", IPs: []string{"10.244.0.5"}}}, v1.Scheduled, "", ""},
		{"its pod's", []v1.LauncherPod{{Name: pod.Name, IPs: []string{"10.244.0.5"}}}, v1.Running, "10.244.0.5", ""},
		{"not its pod's", []v1.LauncherPod{{Name: pod.Name, IPs: []string{"10.244.0.6"}}}, v1.Scheduled, "", "has not the pod's address 10.244.0.6"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			object := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "u1"},
				Status: v1.VirtualMachineInstanceStatus{NodeName: "n1", Phase: v1.Scheduled, ActivePods: map[types.UID]string{"p": "n1"}, LauncherPods: tt.pods}}
			object.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", Masquerade: &v1.InterfaceMasquerade{}}}
			launcher := reporting(pod, control.StateReport{State: control.StateRunning, Machine: &qemuargs.Machine{Type: "pc-q35-7.2"}, StartedAt: &started})
			launcher.TakeLink(netsetup.Facts{Link: v1.PodLink, Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.5/24"), netip.MustParsePrefix("8.8.8.8/32")}})
			r := &Reconciler{Client: fake.NewClientBuilder().WithScheme(nodetest.Scheme(t)).WithObjects(object).WithStatusSubresource(object).Build(),
				Events: events.NewFakeRecorder(10), Clock: clock.RealClock{}, NodeName: "n1", Sessions: connected(t, launcher)}
			for range 2 {
				if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(object)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
				t.Fatal(err)
			}
			var ips []string
			for _, nic := range object.Status.Interfaces {
				ips = append(ips, nic.IPs...)
			}
			if object.Status.Phase != tt.phase || strings.Join(ips, " ") != tt.ip {
				t.Errorf("phase %s with addresses %q, want %s with %q", object.Status.Phase, ips, tt.phase, tt.ip)
			}
			condition := object.Status.Condition(v1.ConditionSynchronized)
			if (condition != nil) != (tt.says != "") || condition != nil && !strings.Contains(condition.Message, tt.says) {
				t.Errorf("condition %+v, want %q", condition, tt.says)
			}
			if served := r.Launcher(object) != nil; served != (tt.says == "") {
				t.Errorf("the launcher is asked by users: %v", served)
			}
		})
	}
}
