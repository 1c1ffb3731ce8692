package node

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestEachInterfaceIsInTheStatus: each interface of the spec's is in the status, with what IPAM gave and what the
// guest's agent says.
func TestEachInterfaceIsInTheStatus(t *testing.T) {
	vmi := nodetest.Beside()
	launcher := &sessions.Session{}
	for _, link := range nodetest.BesideLinks(vmi) {
		launcher.TakeLink(link)
	}
	started := metav1.Unix(1000, 0).Time
	state := control.StateReport{State: control.StateRunning, Machine: &qemuargs.Machine{Type: "pc-q35-11.1"}, StartedAt: &started}
	report(vmi, state, networkOf(launcher, vmi, []string{"10.244.0.5"}), metav1.Unix(2000, 0))
	lan := v1.NetworkInterfaceStatus{Name: "lan", MAC: v1.MAC(vmi.UID, "lan"), PodInterfaceName: vmi.Spec.Networks[2].Link(), InfoSource: "domain, multus-status", QueueCount: 1, IPAM: ptr.To(false)}
	pods := v1.NetworkInterfaceStatus{Name: "default", MAC: v1.MAC(vmi.UID, "default"), IP: "10.244.0.5", IPs: []string{"10.244.0.5"}, PodInterfaceName: "eth0", InfoSource: "domain", QueueCount: 1}
	given := v1.NetworkInterfaceStatus{Name: "given", MAC: v1.MAC(vmi.UID, "given"), IP: "192.0.2.9", IPs: []string{"192.0.2.9"}, PodInterfaceName: vmi.Spec.Networks[1].Link(), InfoSource: "domain, multus-status", QueueCount: 1, IPAM: ptr.To(true)}
	if diff := cmp.Diff([]v1.NetworkInterfaceStatus{lan, pods, given}, vmi.Status.Interfaces); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	before := vmi.DeepCopy()
	reportAgent(vmi, control.AgentReport{Connected: true, Interfaces: []control.GuestInterface{
		{Name: "enp1s0", MAC: lan.MAC, Addresses: []string{"192.168.1.50", "fe80::1"}},
		{Name: "enp2s0", MAC: pods.MAC, Addresses: []string{"10.0.2.2"}},
		{Name: "br0", MAC: lan.MAC, Addresses: []string{"172.16.0.1"}}, // of the same MAC, as a guest's bridge has it
	}}, metav1.Unix(3000, 0))
	lan.InterfaceName, lan.InfoSource, lan.IP, lan.IPs = "enp1s0", "domain, guest-agent, multus-status", "192.168.1.50", []string{"192.168.1.50"}
	pods.InterfaceName, pods.InfoSource = "enp2s0", "domain, guest-agent"
	bridge := v1.NetworkInterfaceStatus{InterfaceName: "br0", MAC: lan.MAC, InfoSource: "guest-agent", IP: "172.16.0.1", IPs: []string{"172.16.0.1"}}
	if diff := cmp.Diff([]v1.NetworkInterfaceStatus{lan, pods, given, bridge}, vmi.Status.Interfaces); diff != "" {
		t.Errorf("with the agent, -want +got:\n%s", diff)
	}
	// A virt-handler that has begun anew has not heard the agent yet.
	again, old := before.DeepCopy(), vmi.DeepCopy()
	for i := range old.Status.Interfaces {
		old.Status.Interfaces[i].IPAM = nil // of a virt-handler that did not say it
	}
	keepAgentReport(again, old)
	if diff := cmp.Diff(vmi.Status.Interfaces, again.Status.Interfaces); diff != "" {
		t.Errorf("kept, -want +got:\n%s", diff)
	}
}

// TestUnreadLinkKeepsWhatIsKnown: a link that cannot be read in one pass takes no address and no IPAM from the
// status. An address that only the guest's agent reported is dropped. A link that is gone keeps nothing, and a link
// of another pod keeps nothing.
func TestUnreadLinkKeepsWhatIsKnown(t *testing.T) {
	began := nodetest.Beside()
	launcher := &sessions.Session{}
	for _, link := range nodetest.BesideLinks(began) {
		launcher.TakeLink(link)
	}
	started := metav1.Unix(1000, 0).Time
	state := control.StateReport{State: control.StateRunning, Machine: &qemuargs.Machine{Type: "pc-q35-11.1"}, StartedAt: &started}
	report(began, state, networkOf(launcher, began, []string{"10.244.0.5"}), metav1.Unix(2000, 0))
	want := began.DeepCopy().Status.Interfaces
	reportAgent(began, control.AgentReport{Connected: true, Interfaces: []control.GuestInterface{
		{Name: "enp1s0", MAC: v1.MAC(began.UID, "lan"), Addresses: []string{"192.168.1.50"}}}}, metav1.Unix(3000, 0))
	type statuses = []v1.NetworkInterfaceStatus
	again := func(change func(*v1.VirtualMachineInstance), unread *sessions.Session, ips ...string) statuses {
		vmi := began.DeepCopy()
		change(vmi)
		report(vmi, state, networkOf(unread, vmi, ips), metav1.Unix(4000, 0))
		return vmi.Status.Interfaces
	}
	none := &sessions.Session{} // it has no network namespace
	if diff := cmp.Diff(want, again(func(*v1.VirtualMachineInstance) {}, none, "10.244.0.5")); diff != "" {
		t.Errorf("no link can be read, -want +got:\n%s", diff)
	}
	moved := again(func(vmi *v1.VirtualMachineInstance) { vmi.Status.LauncherPod = "target" }, none, "10.244.1.7")
	if given := moved[2]; given.IPAM != nil || given.IPs != nil || given.PodInterfaceName != "" {
		t.Errorf("of the pod from which the guest has moved: %+v", given)
	}
	if pods := moved[1]; pods.IP != "10.244.1.7" || len(pods.IPs) != 1 || pods.PodInterfaceName != "eth0" {
		t.Errorf("the pod's own link after a move: %+v", pods)
	}
	for _, nic := range []string{"given", "default"} {
		if facts, ok := factsOf(began, nic, netsetup.Facts{}, fmt.Errorf("read: %w", netsetup.ErrNoLink)); ok {
			t.Errorf("of the link of %q, which is gone: %+v", nic, facts)
		}
	}
}
