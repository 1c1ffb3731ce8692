package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// besideVMI has the pod network, one network without IPAM, and one with.
func besideVMI() *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Name, vmi.Namespace, vmi.UID = "vm", "default", "0a1b2c3d-0000-4000-8000-000000000001"
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{
		{Name: "lan", Model: "virtio", Bridge: &v1.InterfaceBridge{}},
		{Name: "default", Model: "virtio", Masquerade: &v1.InterfaceMasquerade{}},
		{Name: "given", Model: "virtio", Bridge: &v1.InterfaceBridge{}},
	}
	vmi.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}},
		{Name: "given", Multus: &v1.MultusNetwork{NetworkName: "given"}}, {Name: "lan", Multus: &v1.MultusNetwork{NetworkName: "lan"}}}
	vmi.Status.Phase = v1.Running
	return vmi
}

func besideLinks(vmi *v1.VirtualMachineInstance) map[string]netsetup.Facts {
	return map[string]netsetup.Facts{
		"default": {Link: "eth0", MAC: "0a:58:0a:f4:00:05", MTU: 1450, Addresses: []netip.Prefix{prefix("10.244.0.5/24")}},
		"lan":     {Link: vmi.Spec.Networks[2].Link(), MAC: v1.MAC(vmi.UID, "lan"), MTU: 1500, Addresses: []netip.Prefix{prefix("2001:db8::1/64")}},
		"given":   {Link: vmi.Spec.Networks[1].Link(), MAC: v1.MAC(vmi.UID, "given"), MTU: 1500, Addresses: []netip.Prefix{prefix("192.0.2.9/24"), prefix("2001:db8::9/64")}},
	}
}

// TestEachInterfaceIsInTheStatus: each interface of the spec's is in the status, with what IPAM gave and what the
// guest's agent says.
func TestEachInterfaceIsInTheStatus(t *testing.T) {
	vmi := besideVMI()
	launcher := &sessions.Session{}
	for _, link := range besideLinks(vmi) {
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
	began := besideVMI()
	launcher := &sessions.Session{}
	for _, link := range besideLinks(began) {
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

// TestEachInterfaceIsWiredToItsOwnLink: each interface of the spec's is wired to its own link, and the launcher gets the
// tap of each by its name, and a DHCP socket for those that have an address to tell. Without one of
// the links, the guest does not start, and nothing is wired.
func TestEachInterfaceIsWiredToItsOwnLink(t *testing.T) {
	for name, missing := range map[string]string{"": "", "without Multus": "lan"} {
		t.Run(name, func(t *testing.T) {
			n, netns, vmi := newNode(t), nodetest.PodNetwork(t), besideVMI()
			vmi.Spec.Domain.Devices.AutoattachGraphicsDevice, vmi.Spec.Domain.Devices.AutoattachSerialConsole = ptr.To(false), ptr.To(false)
			v1.Default(vmi)
			for name, link := range besideLinks(vmi) {
				if name != missing && name != "default" {
					addLink(t, netns, link)
				}
			}
			launcher := n.Dial(t, "vm1")
			launcher.Send(control.EventHello, nodetest.Hello(), nodetest.NetNSFile(t, netns))
			n.Await(t)
			acceleration := accelerator.New(broken)
			acceleration.PermitEmulation(true)
			r := &Reconciler{Chooser: acceleration, Clock: clock.RealClock{}, Sessions: n.sessions, Events: events.NewFakeRecorder(10)}
			before := links(t, netns)
			started := make(chan error, 1)
			go func() { started <- r.start(t.Context(), vmi, n.sessions.Get(nodetest.Pod("a")), false) }()
			last := answerUntil(t, launcher, control.CommandStart, control.CommandReject)
			if err := <-started; err != nil {
				t.Fatal(err)
			}
			if missing != "" {
				why := `network \"lan\": the pod has no interface \"` + vmi.Spec.Networks[2].Link() + `\": is Multus installed on this node?`
				if after := links(t, netns); last.Execute != control.CommandReject || !strings.Contains(string(last.Data), strings.ReplaceAll(why, `"`, `\"`)) && !strings.Contains(string(last.Data), why) || !slices.Equal(before, after) {
					t.Errorf("%s %s, links %v", last.Execute, last.Data, after)
				}
				return
			}
			var names []string
			for _, f := range last.Files {
				names = append(names, f.Name)
				if strings.HasPrefix(f.Name, "tap/") {
					if got := tapOf(t, f.File); got != map[string]string{"tap/lan/0": "tap" + vmi.Spec.Networks[2].Link()[3:], "tap/default/0": "tap0", "tap/given/0": "tap" + vmi.Spec.Networks[1].Link()[3:]}[f.Name] {
						t.Errorf("%s is %s", f.Name, got)
					}
				}
			}
			want := []string{"tap/lan/0", "tap/default/0", "dhcp/default", "router/default", "dhcp6/default", "tap/given/0", "dhcp/given"}
			if !slices.Equal(names, want) {
				t.Errorf("it came with the files %q, want %q", names, want)
			}
			var request control.StartRequest
			if err := control.Decode(last.Data, &request); err != nil || len(request.DHCP) != 2 || request.DHCP[1].Lease.ClientIP != prefix("192.0.2.9/24") || request.DHCP[1].Lease.ClientMAC != v1.MAC(vmi.UID, "given") {
				t.Errorf("leases %+v: %v", request.DHCP, err)
			}
			if len(request.IPv6) != 1 {
				t.Errorf("IPv6 %+v", request.IPv6)
			}
		})
	}
}

// TestNothingIsWiredIfOneLinkIsUnfit: if one of the links cannot have a guest, the launcher is told so with the interface's field,
// and no interface is wired.
func TestNothingIsWiredIfOneLinkIsUnfit(t *testing.T) {
	n, netns, vmi := newNode(t), nodetest.PodNetwork(t), besideVMI()
	vmi.Spec.Domain.Devices.AutoattachGraphicsDevice, vmi.Spec.Domain.Devices.AutoattachSerialConsole = ptr.To(false), ptr.To(false)
	v1.Default(vmi)
	facts := besideLinks(vmi)
	addLink(t, netns, facts["lan"])
	launcher := n.Dial(t, "vm1")
	launcher.Send(control.EventHello, nodetest.Hello(), nodetest.NetNSFile(t, netns))
	n.Await(t)
	session := n.sessions.Get(nodetest.Pod("a"))
	given := facts["given"] // the last interface
	given.Kind = "ipvlan"
	session.TakeLink(given)
	acceleration := accelerator.New(broken)
	acceleration.PermitEmulation(true)
	r := &Reconciler{Chooser: acceleration, Clock: clock.RealClock{}, Sessions: n.sessions, Events: events.NewFakeRecorder(10)}
	before := links(t, netns)
	started := make(chan error, 1)
	go func() { started <- r.start(t.Context(), vmi, session, false) }()
	last := answerUntil(t, launcher, control.CommandStart, control.CommandReject)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	var why control.Termination
	if err := control.Decode(last.Data, &why); err != nil || last.Execute != control.CommandReject || !strings.Contains(why.Message, `spec.domain.devices.interfaces[2]: Forbidden: network "given"`) || !strings.Contains(why.Message, "is an ipvlan") {
		t.Errorf("%s %s: %v", last.Execute, last.Data, err)
	}
	if after := links(t, netns); !slices.Equal(before, after) {
		t.Errorf("links %v, before %v", after, before)
	}
}

// TestOverlappingAddressIsRefused: an address that the private network of the masqueraded interface has too is refused, and
// so no guest runs whose masqueraded interface hears nothing.
func TestOverlappingAddressIsRefused(t *testing.T) {
	vmi := besideVMI()
	vmi.Spec.Networks[0].Pod.VMNetworkCIDR = "192.0.2.0/28"
	machine := &qemuargs.Machine{}
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		machine.NICs = append(machine.NICs, qemuargs.NIC{Name: nic.Name, MAC: v1.MAC(vmi.UID, nic.Name), Queues: 1})
	}
	_, errs := connections(vmi, machine, besideLinks(vmi))
	if want := `spec.domain.devices.interfaces[2]: Forbidden: network "given" gives the address 192.0.2.9, which is in the private network 192.0.2.0/28 of interface "default"`; len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
		t.Errorf("got %v", errs)
	}
	vmi.Spec.Networks[0].Pod.VMNetworkCIDR = "192.0.2.16/28"
	if got, errs := connections(vmi, machine, besideLinks(vmi)); len(errs) > 0 || len(got) != 3 {
		t.Errorf("got %v", errs)
	}
}

// TestPasstInterfaceIsNotWired: virt-handler wires nothing for an interface of passt, and the others as ever.
func TestPasstInterfaceIsNotWired(t *testing.T) {
	vmi := besideVMI()
	first := &vmi.Spec.Domain.Devices.Interfaces[0]
	first.Masquerade, first.PasstBinding = nil, &v1.InterfacePasstBinding{}
	machine := &qemuargs.Machine{}
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		machine.NICs = append(machine.NICs, qemuargs.NIC{Name: nic.Name, MAC: v1.MAC(vmi.UID, nic.Name), Queues: 1})
	}
	got, errs := connections(vmi, machine, besideLinks(vmi))
	if len(errs) > 0 || len(got) != 2 || got[0].name != vmi.Spec.Domain.Devices.Interfaces[1].Name || got[0].nic.Name != got[0].name {
		t.Errorf("%+v, %v", got, errs)
	}
}

// tapOf asks the kernel for the name of a queue's tap.
func tapOf(t *testing.T, f *os.File) string {
	t.Helper()
	request, err := unix.NewIfreq("")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlIfreq(int(f.Fd()), unix.TUNGETIFF, request); err != nil {
		t.Fatal(err)
	}
	return request.Name()
}

// addLink adds a link as a CNI plugin does.
func addLink(t *testing.T, netns ns.NetNS, facts netsetup.Facts) {
	t.Helper()
	err := netns.Do(func(ns.NetNS) error {
		link := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "x" + facts.Link[3:]}
		link.Name, link.MTU = facts.Link, facts.MTU
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		peer, err := netlink.LinkByName(link.PeerName)
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetUp(peer), netlink.LinkSetUp(link)); err != nil {
			return err
		}
		for _, a := range facts.Addresses {
			address, err := netlink.ParseAddr(a.String())
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(link, address); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMoveNeedsThePodsAddressesOrNone: a guest moves to a pod that has its addresses, or none.
func TestMoveNeedsThePodsAddressesOrNone(t *testing.T) {
	vmi := besideVMI()
	links := besideLinks(vmi)
	vmi.Status.Interfaces = []v1.NetworkInterfaceStatus{{Name: "default", IPs: []string{"10.244.7.7"}}, {Name: "lan", IPs: []string{"192.168.1.50"}}, {Name: "given", IPs: []string{"192.0.2.9", "192.0.2.10"}}, {InterfaceName: "br0", IP: "172.16.0.1"}}
	if err := sameAddresses(vmi, links); err != nil {
		t.Error(err)
	}
	vmi.Status.Interfaces[2].IPs = []string{"192.0.2.10"}
	if err := sameAddresses(vmi, links); err == nil || !strings.Contains(err.Error(), `network "given" gives the guest 192.0.2.9 on this node, and the guest has ["192.0.2.10"]`) {
		t.Errorf("got %v", err)
	}
	// Another address of the pod's than the first is not the guest's.
	vmi.Status.Interfaces[2].IPs = []string{"192.0.2.9"}
	given := links["given"]
	given.Addresses = append(given.Addresses, prefix("192.0.2.10/24"))
	links["given"] = given
	if err := sameAddresses(vmi, links); err == nil || !strings.Contains(err.Error(), "192.0.2.10 on this node") {
		t.Errorf("got %v", err)
	}
}
