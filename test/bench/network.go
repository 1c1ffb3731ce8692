package main

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// linkMTU of every link here.
const linkMTU = 1450

// path is a way from a guest to others. Its link is made in network namespaces of its own, which stand for a node
// and a pod.
type path struct {
	id, what string
	link     func(node, pod space, m *qemuargs.Machine) *guestLink
}

// paths returns the paths that are measured, and what they are compared with.
func paths() (ours []path, plain path) {
	return []path{
		{"masquerade", "through the pod's link, masquerade, bridge and tap", masqueradeLink},
		{"bridge", "through the pod's link, bridge and tap", bridgeLink},
		{"multus", "through the node's bridge, a second link of the pod, bridge and tap", multusLink},
	}, path{"tap", "a plain tap, the same QEMU arguments", plainLink}
}

// measureNetwork measures what a guest's network carries, and how long a byte is on its way. The guest is the tiny one.
func measureNetwork(r *run) {
	r.lockThread()
	folder := r.folder("")
	m := networkedMachine(r, folder)
	ours, plain := paths()
	start := func(p path) (guest *carrier) {
		doing("start the guest of "+p.id, func() {
			guest = startMachine(r, m, filepath.Join(folder, p.id), p.link(newSpace(r), newSpace(r), m))
		})
		return guest
	}
	var guests []*carrier
	for _, p := range ours {
		guests = append(guests, start(p))
	}
	beside := start(plain)
	r.eachRound(func(r *run) {
		for i, p := range ours {
			r.addTurns("network-"+p.id, (*carrier).carry, guests[i], beside)
			r.addTurns("latency-"+p.id, (*carrier).trip, guests[i], beside)
		}
	})
}

// guestLink is a tap and what is behind it.
type guestLink struct {
	tap *os.File
	// guest and router are what the guest is told; router is unset where there is none.
	guest  netip.Prefix
	router netip.Addr
	// Who dials the address in client reaches the guest.
	client  ns.NetNS
	address netip.Addr
}

// space is a network namespace, and the links in it.
type space struct {
	ns.NetNS
	links *netlink.Handle
}

func newSpace(r *run) space {
	made, err := ns.TempNetNS()
	check(err, "make a network namespace (run this as root)")
	r.after(made.Close)
	links := must(netlink.NewHandleAt(netns.NsHandle(made.Fd()), unix.NETLINK_ROUTE))
	r.after(func() error { links.Close(); return nil })
	return space{made, links}
}

// address gives a link an address, and brings it up.
func (s space) address(name, address string) {
	link := must(s.links.LinkByName(name))
	ip := must(netlink.ParseAddr(address))
	check(errors.Join(s.links.LinkSetMTU(link, linkMTU), s.links.AddrAdd(link, ip), s.links.LinkSetUp(link)))
}

const (
	podAddress, nodeAddress = "10.244.0.5", "10.244.0.1"
	// podLink is the name of a pod's interface, and lanLink of that on a network of Multus.
	podLink, lanLink = "eth0", "pod0123456789a"
)

// joined links a pod's namespace with its node, as a CNI plugin does. port is the link on the node.
func joined(node, pod space, name, port string) {
	link := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: port, PeerNamespace: netlink.NsFd(int(node.Fd()))}
	link.Name, link.MTU = name, linkMTU
	check(pod.links.LinkAdd(link), "link a pod's namespace")
	check(pod.links.LinkSetUp(link), "link a pod's namespace")
}

// addressed gives a pod an address, and a route over its node.
func addressed(node, pod space) netsetup.Facts {
	joined(node, pod, podLink, "pod")
	pod.address(podLink, podAddress+"/24")
	node.address("pod", nodeAddress+"/24")
	check(pod.links.RouteAdd(&netlink.Route{Gw: net.ParseIP(nodeAddress)}), "give a pod its route")
	return must(netsetup.ReadFacts(pod, podLink))
}

// wired carries a plan out as virt-handler does, and opens the guest's tap. The node reaches the guest by the pod's
// address.
func wired(node, pod space, plan *netsetup.Plan) *guestLink {
	if err := netsetup.Apply(pod, plan); !netsetup.Wired(err) {
		check(err)
	}
	guest := netip.MustParsePrefix(podAddress + "/24")
	return &guestLink{tap: must(netsetup.OpenTap(pod, plan))[0], guest: guest, client: node, address: guest.Addr()}
}

func masqueradeLink(node, pod space, m *qemuargs.Machine) *guestLink {
	plan := must(netsetup.PlanMasquerade(addressed(node, pod), netsetup.Masquerade{Queues: m.NICs[0].Queues}))
	link, lease := wired(node, pod, plan), plan.Lease(m.NICs[0].MAC)
	link.guest, link.router = lease.ClientIP, lease.Router
	return link
}

// bridgeLink: the guest has the pod's address.
func bridgeLink(node, pod space, m *qemuargs.Machine) *guestLink {
	card := netsetup.Bridged{MAC: m.NICs[0].MAC, Queues: m.NICs[0].Queues}
	return wired(node, pod, must(netsetup.PlanBridge(addressed(node, pod), card)))
}

// multusLink: the guest is on a bridge of the node, beside the pod's own network. The node speaks with it over this
// bridge.
func multusLink(node, pod space, m *qemuargs.Machine) *guestLink {
	lan := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	lan.Name = "lan"
	check(node.links.LinkAdd(lan), "make a bridge on the node")
	joined(node, pod, lanLink, "port")
	port := must(node.links.LinkByName("port"))
	check(errors.Join(node.links.LinkSetMaster(port, lan), node.links.LinkSetUp(port)), "make a bridge on the node")
	node.address("lan", nodeAddress+"/24")
	card := netsetup.Bridged{MAC: m.NICs[0].MAC, Queues: m.NICs[0].Queues, Beside: true}
	return wired(node, pod, must(netsetup.PlanBridge(must(netsetup.ReadFacts(pod, lanLink)), card)))
}

// plainLink is a tap with an address, and nothing else.
func plainLink(node, _ space, _ *qemuargs.Machine) *guestLink {
	tap := &netlink.Tuntap{LinkAttrs: netlink.NewLinkAttrs(), Mode: netlink.TUNTAP_MODE_TAP,
		Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR, NonPersist: true, Queues: 1}
	tap.Name = "tap0"
	// The kernel makes a tap in the caller's namespace.
	check(node.Do(func(ns.NetNS) error { return netlink.LinkAdd(tap) }), "make a tap")
	node.address(tap.Name, "10.0.2.1/24")
	guest := netip.MustParsePrefix("10.0.2.2/24")
	return &guestLink{tap: tap.Fds[0], guest: guest, client: node, address: guest.Addr()}
}
