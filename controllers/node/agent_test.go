package node

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// running returns a VMI with an interface of each binding.
func running() *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running}}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "masq", Masquerade: &v1.InterfaceMasquerade{}}, {Name: "bridge", Bridge: &v1.InterfaceBridge{}}}
	for i, name := range []string{"masq", "bridge"} {
		vmi.Status.Interfaces = append(vmi.Status.Interfaces, v1.NetworkInterfaceStatus{Name: name, MAC: fmt.Sprintf("52:54:00:00:00:0%d", i+1),
			IP: "10.0.0.1", IPs: []string{"10.0.0.1"}, InfoSource: fromDomain})
	}
	return vmi
}

func TestReportAgent(t *testing.T) {
	then, now := metav1.Unix(1000, 0), metav1.Unix(2000, 0)
	vmi := running()
	report := control.AgentReport{Connected: true, OS: control.GuestOS{ID: "debian", Name: "Debian"}, Frozen: true, Interfaces: []control.GuestInterface{
		{Name: "eth1", MAC: "52:54:00:00:00:02", Addresses: []string{"10.0.0.1", "10.96.0.1", "no address", "fe80::1", "fe80::1%eth1"}},
		{Name: "eth0", MAC: "52:54:00:00:00:01", Addresses: []string{"10.0.2.2"}},
		{Name: "br0", MAC: "52:54:00:00:00:01", Addresses: []string{"192.168.1.1"}},
	}}
	reportAgent(vmi, report, then)
	want := []v1.NetworkInterfaceStatus{
		{Name: "masq", MAC: "52:54:00:00:00:01", IP: "10.0.0.1", IPs: []string{"10.0.0.1"}, InterfaceName: "eth0", InfoSource: "domain, guest-agent"},
		{Name: "bridge", MAC: "52:54:00:00:00:02", IP: "10.0.0.1", IPs: []string{"10.0.0.1", "10.96.0.1"}, InterfaceName: "eth1", InfoSource: "domain, guest-agent"},
		{MAC: "52:54:00:00:00:01", IP: "192.168.1.1", IPs: []string{"192.168.1.1"}, InterfaceName: "br0", InfoSource: "guest-agent"},
	}
	if diff := cmp.Diff(want, vmi.Status.Interfaces); diff != "" {
		t.Errorf("interfaces, -want +got:\n%s", diff)
	}
	if c := vmi.Status.Condition(v1.ConditionAgentConnected); c == nil || c.Status != metav1.ConditionTrue || vmi.Status.GuestOSInfo.ID != "debian" || vmi.Status.FSFreezeStatus != v1.FSFrozen {
		t.Errorf("connected: %+v", vmi.Status)
	}
	again := running()
	again.Status.Conditions, again.Status.GuestOSInfo = vmi.Status.Conditions, vmi.Status.GuestOSInfo
	reportAgent(again, report, now)
	if diff := cmp.Diff(vmi, again); diff != "" {
		t.Errorf("the same a second time changes the status:\n%s", diff)
	}
	reportAgent(again, control.AgentReport{}, now)
	if s := again.Status; s.Condition(v1.ConditionAgentConnected) != nil || s.GuestOSInfo.ID != "debian" || s.FSFreezeStatus != "" {
		t.Errorf("gone: %+v", s)
	}
	early := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Scheduled}}
	reportAgent(early, report, now)
	if len(early.Status.Conditions) > 0 || len(early.Status.Interfaces) > 0 {
		t.Errorf("before the guest runs: %+v", early.Status)
	}
}

// TestRestartKeepsWhatTheAgentSaid: a virt-handler that was just started leaves the status as
// it is until the launcher has said what it knows of the agent.
func TestRestartKeepsWhatTheAgentSaid(t *testing.T) {
	scheme := nodetest.Scheme(t)
	object := running()
	object.Namespace, object.Name, object.UID = "ns", "vm", "u1"
	object.Status.NodeName, object.Status.ActivePods = "n1", map[types.UID]string{"p": "n1"}
	pod := types.NamespacedName{Namespace: "ns", Name: v1.LauncherPodName("vm", "u1", v1.FirstPod)}
	object.Status.LauncherPods = []v1.LauncherPod{{Name: pod.Name, IPs: []string{"10.244.0.5"}}}
	machine := &qemuargs.Machine{Agent: &qemuargs.Agent{}}
	started := time.Unix(1000, 0)
	launcher := reporting(pod, control.StateReport{State: control.StateRunning, Machine: machine, StartedAt: &started})
	launcher.TakeLink(netsetup.Facts{Link: v1.PodLink, Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.5/24")}})
	r := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(object).WithStatusSubresource(object).Build(),
		Events: events.NewFakeRecorder(10), Clock: clock.RealClock{}, NodeName: "n1", Sessions: connected(t, launcher)}
	step := func() v1.VirtualMachineInstanceStatus {
		t.Helper()
		key := client.ObjectKeyFromObject(object)
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
		now := &v1.VirtualMachineInstance{}
		if err == nil {
			err = r.Client.Get(t.Context(), key, now)
		}
		if err != nil {
			t.Fatal(err)
		}
		return now.Status
	}
	report := control.AgentReport{Connected: true, Frozen: true, Interfaces: []control.GuestInterface{{Name: "lo0", MAC: "52:54:00:00:00:77", Addresses: []string{"10.0.2.2"}}}}
	launcher.SetAgent(&report)
	before := step()
	if before.Condition(v1.ConditionAgentConnected) == nil || before.FSFreezeStatus == "" || len(before.Interfaces) != 3 {
		t.Fatalf("with an agent: %+v", before)
	}
	launcher.SetAgent(nil)
	if diff := cmp.Diff(before, step()); diff != "" {
		t.Errorf("before the launcher has told of it:\n%s", diff)
	}
	launcher.SetAgent(&control.AgentReport{})
	if now := step(); now.Condition(v1.ConditionAgentConnected) != nil || now.FSFreezeStatus != "" || len(now.Interfaces) != 2 {
		t.Errorf("the agent has gone: %+v", now)
	}
	launcher.SetAgent(&report)
	step()
	launcher.SetAgent(nil)
	machine.Agent = nil
	if now := step(); now.Condition(v1.ConditionAgentConnected) != nil {
		t.Errorf("no port: %+v", now)
	}
}

// TestReportAgentIsBounded: a launcher whose guest broke out says of the agent
// what it likes, and the status stays small.
func TestReportAgentIsBounded(t *testing.T) {
	long := strings.Repeat("<", 1<<12)
	report := control.AgentReport{Connected: true, Version: long, OS: control.GuestOS{Name: long, KernelRelease: long, Version: long, PrettyName: long,
		VersionID: long, KernelVersion: long, Machine: long, ID: long}}
	for range 1000 {
		i := control.GuestInterface{Name: long, MAC: long}
		for n := range 1000 {
			i.Addresses = append(i.Addresses, fmt.Sprintf("2001:db8:1111:2222:3333:4444:%x:%x", n>>8, n&0xff))
		}
		report.Interfaces = append(report.Interfaces, i)
	}
	vmi := running()
	reportAgent(vmi, report, metav1.Unix(1000, 0))
	written, err := json.Marshal(vmi.Status)
	if err != nil || len(written) > 20<<10 {
		t.Errorf("a status of %d bytes, error %v", len(written), err)
	}
	for name, data := range map[string]string{"long": `{"connected": true, "version": "` + strings.Repeat("x", control.MaxAgentReport) + `"}`, "no JSON": "{",
		"interfaces": `{"connected": true, "interfaces": [` + strings.Repeat("{},", 10000) + `{}]}`,
		"addresses":  `{"connected": true, "interfaces": [{"name": "", "addresses": [` + strings.Repeat(`"",`, 10000) + `""]}]}`} {
		launcher := &sessions.Session{Client: &control.Client{}}
		if _, ok := launcher.ReadAgent(json.RawMessage(data)); ok {
			t.Errorf("%s: it was taken", name)
		}
	}
}

// FuzzAgentReport plays a launcher that says anything of its guest's agent: what
// comes of it is a status of a size that the API server takes.
func FuzzAgentReport(f *testing.F) {
	for _, s := range []string{`{"connected": true, "os": {"id": "debian"}, "interfaces": [{"name": "eth0", "mac": "52:54:00:00:00:01", "addresses": ["10.0.2.2"]}], "frozen": true}`,
		`{"connected": true, "os": {"name": "\u0000\ud800"}, "interfaces": [{"name": "", "mac": "", "addresses": ["::ffff:1.2.3.4", "fe80::1%x"]}]}`, `{"connected": false}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		launcher := &sessions.Session{Client: &control.Client{}}
		said, ok := launcher.ReadAgent(data)
		if !ok {
			return
		}
		vmi := running()
		reportAgent(vmi, *said, metav1.Unix(1000, 0))
		written, err := json.Marshal(vmi.Status)
		if err != nil || len(written) > 20<<10 {
			t.Fatalf("a status of %d bytes, error %v", len(written), err)
		}
		for i, own := range []string{"masq", "bridge"} {
			if s := vmi.Status.Interfaces[i]; s.Name != own || s.IP != "10.0.0.1" {
				t.Fatalf("interface %s has become %+v", own, s)
			}
		}
	})
}

// TestMovedGuestKeepsWhatItsAgentSaid: a guest that has moved has the addresses of its new pod, and what its agent
// said of its interfaces, until the agent says more. A link that could not be read in the new pod has nothing of the
// old pod's link.
func TestMovedGuestKeepsWhatItsAgentSaid(t *testing.T) {
	vmi := func(interfaces ...v1.NetworkInterfaceStatus) *v1.VirtualMachineInstance {
		return &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running, Interfaces: interfaces}}
	}
	type status = v1.NetworkInterfaceStatus
	addresses := func(s status, ip string) status {
		s.IP, s.IPs = ip, []string{ip}
		return s
	}
	own := status{Name: "default", InterfaceName: "eth0", PodInterfaceName: "eth0", MAC: "m", InfoSource: fromDomain + ", " + fromAgent}
	lan := status{Name: "lan", InterfaceName: "eth1", PodInterfaceName: "pod1", MAC: "l", InfoSource: fromDomain + ", " + fromAgent}
	card := status{Name: "card", InterfaceName: "eth2", MAC: "c", InfoSource: fromAgent} // the pod has no link for it
	guests := addresses(status{InterfaceName: "docker0", InfoSource: fromAgent}, "172.17.0.1")
	before := vmi(addresses(own, "10.0.1.1"), addresses(lan, "192.168.1.5"), addresses(card, "192.168.2.5"), guests)
	unread := status{Name: "lan", MAC: "l", InfoSource: fromDomain, LinkState: v1.LinkUp}
	now := vmi(addresses(status{Name: "default", PodInterfaceName: "eth0", MAC: "m", InfoSource: fromDomain}, "10.0.2.1"), unread,
		status{Name: "card", MAC: "c", InfoSource: fromDomain})
	keepAgentReport(now, before)
	want := []status{addresses(own, "10.0.2.1"), unread, addresses(card, "192.168.2.5"), guests}
	if diff := cmp.Diff(want, now.Status.Interfaces); diff != "" {
		t.Error(diff)
	}
	if before.Status.Interfaces[0].IP != "10.0.1.1" {
		t.Error("what was read is changed")
	}
}

// TestGuestsAddressesAreBounded: however often a guest says other addresses, an interface does not get more than so
// many. Those that the network gave stay.
func TestGuestsAddressesAreBounded(t *testing.T) {
	given := []string{"10.1.0.5", "fd00::5"}
	known := given
	for round := range 20 {
		var said []string
		for i := range 2 * maxGuestAddresses {
			said = append(said, fmt.Sprintf("192.168.%d.%d", round, i))
		}
		known = merged(known, said)
		if len(known) != maxGuestAddresses || !slices.Equal(known[:2], given) {
			t.Fatalf("round %d: %q", round, known)
		}
	}
	var many []string
	for i := range 2 * maxGuestAddresses {
		many = append(many, fmt.Sprintf("10.2.0.%d", i))
	}
	if got := merged(many, []string{"192.168.0.1"}); !slices.Equal(got, many) {
		t.Errorf("of a network that gave many addresses: %q", got)
	}
}
