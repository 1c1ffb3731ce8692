package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// linkMTU of every link here.
const linkMTU = 1450

// path is a way from a guest to others. Its link is made in network namespaces of its own, which stand for a node
// and a pod.
type path struct {
	id, what string
	link     func([]ns.NetNS, *qemuargs.Machine) (*guestLink, error)
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
func measureNetwork(ctx context.Context, b *bench) (rows []row, err error) {
	ours, plain := paths()
	all := append(ours, plain)
	for _, p := range ours {
		beside := func() []series { return []series{{Name: plain.what}} }
		rows = append(rows,
			row{ID: "network-" + p.id, What: fmt.Sprintf("guest's network, %s: %d MiB to the guest and back, each way", p.id, carried>>20), Unit: megabytesPerSecond,
				Ours: series{Name: p.what}, Beside: beside(), Limit: 0.9, OfRatio: true},
			row{ID: "latency-" + p.id, What: fmt.Sprintf("guest's network, %s: a byte to the guest and back", p.id), Unit: milliseconds,
				Ours: series{Name: p.what}, Beside: beside(), Limit: 1.11, OfRatio: true})
	}
	// QEMU ends with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	folder, err := os.MkdirTemp("", "kubeqemu-bench-")
	if err != nil {
		return rows, err
	}
	defer os.RemoveAll(folder)
	m, err := carrierMachine(ctx, b, folder)
	if err != nil {
		return rows, err
	}
	var guests []*carrier
	for _, p := range all {
		guest, end, err := p.start(ctx, b, m, filepath.Join(folder, p.id))
		defer func() { err = errors.Join(err, end()) }()
		if err != nil {
			return rows, fmt.Errorf("start the guest of %s: %w", p.id, err)
		}
		guests = append(guests, guest)
	}
	measures := []func(*carrier) (float64, error){(*carrier).carry, (*carrier).trip}
	return rows, rounds(b, func(round int) error {
		for i := range rows {
			if err := turns(b, round, &rows[i], measures[i%len(measures)], guests[i/len(measures)], guests[len(ours)]); err != nil {
				return err
			}
		}
		return nil
	})
}

// start boots a guest on the path. end ends the guest, if there is one, and its network.
func (p path) start(ctx context.Context, b *bench, m *qemuargs.Machine, overlay string) (guest *carrier, end func() error, err error) {
	var namespaces []ns.NetNS
	end = func() (err error) {
		if guest != nil {
			err = guest.end()
		}
		for _, netns := range namespaces {
			err = errors.Join(err, netns.Close())
		}
		return err
	}
	for range 2 {
		netns, err := newNetNS()
		if err != nil {
			return nil, end, err
		}
		namespaces = append(namespaces, netns)
	}
	link, err := p.link(namespaces, m)
	if err != nil {
		return nil, end, fmt.Errorf("make its network: %w", err)
	}
	guest, err = startMachine(ctx, b, m, overlay, link)
	return guest, end, err
}

// rounds calls measure for each round, and once before for the round that is not counted.
func rounds(b *bench, measure func(round int) error) error {
	for round := range b.rounds + 1 {
		if err := measure(round); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return nil
}

// turns measures in the order A B B A, and adds the means to the row. Round 0 does not count.
func turns(b *bench, round int, r *row, measure func(*carrier) (float64, error), ours, beside *carrier) error {
	var own, other float64
	for _, turn := range []struct {
		guest *carrier
		sum   *float64
	}{{ours, &own}, {beside, &other}, {beside, &other}, {ours, &own}} {
		got, err := measure(turn.guest)
		if err != nil {
			return err
		}
		*turn.sum += got / 2
	}
	b.say("%s, round %d: %.3g %s, %.3g %s", r.ID, round, own, r.Unit, other, r.Unit)
	if round > 0 {
		add(&r.Ours, own)
		add(&r.Beside[0], other)
	}
	return nil
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

func newNetNS() (ns.NetNS, error) {
	netns, err := ns.TempNetNS()
	if err != nil {
		return nil, fmt.Errorf("make a network namespace (run this as root): %w", err)
	}
	return netns, nil
}

// addressed gives a link of the namespace an address, and brings it up.
func addressed(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	ip, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetMTU(link, linkMTU), netlink.AddrAdd(link, ip), netlink.LinkSetUp(link))
}

const (
	podAddress, nodeAddress = "10.244.0.5", "10.244.0.1"
	// lanLink is the name of a pod's interface on a network of Multus.
	lanLink = "pod0123456789a"
)

// podLink links a pod's namespace with its node, as a CNI plugin does. port is the link on the node.
func podLink(node, pod ns.NetNS, name, port string) error {
	err := pod.Do(func(ns.NetNS) error {
		link := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: port, PeerNamespace: netlink.NsFd(int(node.Fd()))}
		link.Name, link.MTU = name, linkMTU
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
	if err != nil {
		return fmt.Errorf("link a pod's namespace: %w", err)
	}
	return nil
}

// addressedPod is a pod with an address, and a route over its node.
func addressedPod(node, pod ns.NetNS) error {
	if err := podLink(node, pod, "eth0", "pod"); err != nil {
		return err
	}
	err := pod.Do(func(ns.NetNS) error {
		if err := addressed("eth0", podAddress+"/24"); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(nodeAddress)})
	})
	if err == nil {
		err = node.Do(func(ns.NetNS) error { return addressed("pod", nodeAddress+"/24") })
	}
	if err != nil {
		return fmt.Errorf("give a pod its address: %w", err)
	}
	return nil
}

// wired carries a plan out as virt-handler does, and opens the guest's tap.
func wired(pod ns.NetNS, plan *netsetup.Plan) (*os.File, error) {
	if err := netsetup.Apply(pod, plan); err != nil && !netsetup.Wired(err) {
		return nil, err
	}
	taps, err := netsetup.OpenTap(pod, plan)
	if err != nil {
		return nil, err
	}
	return taps[0], nil
}

func masqueradeLink(in []ns.NetNS, m *qemuargs.Machine) (*guestLink, error) {
	node, pod := in[0], in[1]
	if err := addressedPod(node, pod); err != nil {
		return nil, err
	}
	facts, err := netsetup.ReadFacts(pod, "eth0")
	if err != nil {
		return nil, err
	}
	plan, err := netsetup.PlanMasquerade(facts, netsetup.Masquerade{Queues: m.NICs[0].Queues})
	if err != nil {
		return nil, err
	}
	tap, err := wired(pod, plan)
	lease := plan.Lease(m.NICs[0].MAC)
	return &guestLink{tap: tap, guest: lease.ClientIP, router: lease.Router, client: node, address: netip.MustParseAddr(podAddress)}, err
}

// bridgeLink: the guest has the pod's address.
func bridgeLink(in []ns.NetNS, m *qemuargs.Machine) (*guestLink, error) {
	node, pod := in[0], in[1]
	if err := addressedPod(node, pod); err != nil {
		return nil, err
	}
	facts, err := netsetup.ReadFacts(pod, "eth0")
	if err != nil {
		return nil, err
	}
	plan, err := netsetup.PlanBridge(facts, netsetup.Bridged{MAC: m.NICs[0].MAC, Queues: m.NICs[0].Queues})
	if err != nil {
		return nil, err
	}
	tap, err := wired(pod, plan)
	return &guestLink{tap: tap, guest: netip.MustParsePrefix(podAddress + "/24"), client: node, address: netip.MustParseAddr(podAddress)}, err
}

// multusLink: the guest is on a bridge of the node, beside the pod's own network. The node speaks with it over this bridge.
func multusLink(in []ns.NetNS, m *qemuargs.Machine) (*guestLink, error) {
	node, pod := in[0], in[1]
	err := node.Do(func(ns.NetNS) error {
		lan := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
		lan.Name = "lan"
		return netlink.LinkAdd(lan)
	})
	if err == nil {
		err = podLink(node, pod, lanLink, "port")
	}
	if err == nil {
		err = node.Do(func(ns.NetNS) error {
			lan, err := netlink.LinkByName("lan")
			if err != nil {
				return err
			}
			port, err := netlink.LinkByName("port")
			if err != nil {
				return err
			}
			return errors.Join(netlink.LinkSetMaster(port, lan), netlink.LinkSetUp(port), addressed("lan", nodeAddress+"/24"))
		})
	}
	if err != nil {
		return nil, fmt.Errorf("make a bridge on the node: %w", err)
	}
	facts, err := netsetup.ReadFacts(pod, lanLink)
	if err != nil {
		return nil, err
	}
	plan, err := netsetup.PlanBridge(facts, netsetup.Bridged{MAC: m.NICs[0].MAC, Queues: m.NICs[0].Queues, Beside: true})
	if err != nil {
		return nil, err
	}
	tap, err := wired(pod, plan)
	return &guestLink{tap: tap, guest: netip.MustParsePrefix(podAddress + "/24"), client: node, address: netip.MustParseAddr(podAddress)}, err
}

// plainLink is a tap with an address, and nothing else.
func plainLink(in []ns.NetNS, _ *qemuargs.Machine) (*guestLink, error) {
	netns := in[0]
	tap := &netlink.Tuntap{LinkAttrs: netlink.NewLinkAttrs(), Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR, NonPersist: true, Queues: 1}
	tap.Name = "tap0"
	err := netns.Do(func(ns.NetNS) error {
		if err := netlink.LinkAdd(tap); err != nil {
			return err
		}
		return addressed(tap.Name, "10.0.2.1/24")
	})
	if err != nil {
		return nil, fmt.Errorf("make a tap: %w", err)
	}
	guest := netip.MustParsePrefix("10.0.2.2/24")
	return &guestLink{tap: tap.Fds[0], guest: guest, client: netns, address: guest.Addr()}, nil
}
