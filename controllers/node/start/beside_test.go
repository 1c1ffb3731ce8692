package start

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// TestEachInterfaceIsWiredToItsOwnLink: each interface of the spec's is wired to its own link, and the launcher gets
// the tap of each by its name, and a DHCP socket for those that have an address to tell. Without one of the links,
// the guest does not start, and nothing is wired.
func TestEachInterfaceIsWiredToItsOwnLink(t *testing.T) {
	for name, missing := range map[string]string{"": "", "without Multus": "lan"} {
		t.Run(name, func(t *testing.T) {
			n, netns, vmi := newNode(t), nodetest.PodNetwork(t), nodetest.Beside()
			devices := &vmi.Spec.Domain.Devices
			devices.AutoattachGraphicsDevice, devices.AutoattachSerialConsole = ptr.To(false), ptr.To(false)
			v1.Default(vmi)
			for name, link := range nodetest.BesideLinks(vmi) {
				if name != missing && name != "default" {
					addLink(t, netns, link)
				}
			}
			launcher := n.Dial(t, "vm1")
			launcher.Send(control.EventHello, nodetest.Hello(), nodetest.NetNSFile(t, netns))
			n.Await(t)
			s := newStarter(nodetest.Broken())
			before := links(t, netns)
			started := make(chan error, 1)
			go func() { started <- s.Start(t.Context(), vmi, n.sessions.Get(nodetest.Pod("a")), false) }()
			last := launcher.AnswerUntil(control.CommandStart, control.CommandReject)
			if err := <-started; err != nil {
				t.Fatal(err)
			}
			if missing != "" {
				why := fmt.Sprintf("network \"lan\": the pod has no interface %q: is Multus installed on this node?",
					vmi.Spec.Networks[2].Link())
				if after := links(t, netns); !rejects(last, why) || !slices.Equal(before, after) {
					t.Errorf("%s %s, links %v", last.Execute, last.Data, after)
				}
				return
			}
			taps := map[string]string{"tap/default/0": "tap0",
				"tap/lan/0":   "tap" + vmi.Spec.Networks[2].Link()[3:],
				"tap/given/0": "tap" + vmi.Spec.Networks[1].Link()[3:]}
			var names []string
			for _, f := range last.Files {
				names = append(names, f.Name)
				if strings.HasPrefix(f.Name, "tap/") {
					if got := tapOf(t, f.File); got != taps[f.Name] {
						t.Errorf("%s is %s", f.Name, got)
					}
				}
			}
			want := []string{"tap/lan/0", "tap/default/0", "dhcp/default", "router/default", "dhcp6/default", "tap/given/0",
				"dhcp/given"}
			if !slices.Equal(names, want) {
				t.Errorf("it came with the files %q, want %q", names, want)
			}
			var request control.StartRequest
			if err := control.Decode(last.Data, &request); err != nil || len(request.DHCP) != 2 ||
				request.DHCP[1].Lease.ClientIP != netip.MustParsePrefix("192.0.2.9/24") ||
				request.DHCP[1].Lease.ClientMAC != v1.MAC(vmi.UID, "given") {
				t.Errorf("leases %+v: %v", request.DHCP, err)
			}
			if len(request.IPv6) != 1 {
				t.Errorf("IPv6 %+v", request.IPv6)
			}
		})
	}
}

// TestNothingIsWiredIfOneLinkIsUnfit: if one of the links cannot have a guest, the launcher is told so with the
// interface's field, and no interface is wired.
func TestNothingIsWiredIfOneLinkIsUnfit(t *testing.T) {
	n, netns, vmi := newNode(t), nodetest.PodNetwork(t), nodetest.Beside()
	devices := &vmi.Spec.Domain.Devices
	devices.AutoattachGraphicsDevice, devices.AutoattachSerialConsole = ptr.To(false), ptr.To(false)
	v1.Default(vmi)
	facts := nodetest.BesideLinks(vmi)
	addLink(t, netns, facts["lan"])
	launcher := n.Dial(t, "vm1")
	launcher.Send(control.EventHello, nodetest.Hello(), nodetest.NetNSFile(t, netns))
	n.Await(t)
	session := n.sessions.Get(nodetest.Pod("a"))
	given := facts["given"] // the last interface
	given.Kind = "ipvlan"
	session.TakeLink(given)
	s := newStarter(nodetest.Broken())
	before := links(t, netns)
	started := make(chan error, 1)
	go func() { started <- s.Start(t.Context(), vmi, session, false) }()
	last := launcher.AnswerUntil(control.CommandStart, control.CommandReject)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if !rejects(last, `spec.domain.devices.interfaces[2]: Forbidden: network "given"`) || !rejects(last, "is an ipvlan") {
		t.Errorf("%s %s", last.Execute, last.Data)
	}
	if after := links(t, netns); !slices.Equal(before, after) {
		t.Errorf("links %v, before %v", after, before)
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
