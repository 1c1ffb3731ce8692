package netsetup

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// savedTable is the routing table for Takeover.Routes of the pod's own interface. Those of
	// others are in savedTables and the index of the bridge. No rule leads there.
	savedTable  = 27505
	savedTables = 1 << 30
	// standInAlias marks a complete stand-in: from then on it has the facts.
	standInAlias = "kubeqemu: has what the CNI plugin set; the guest has the interface"
)

// steps take the pod's interface over. Until the stand-in is marked, the interface is as the
// CNI plugin left it, and after a crash all steps are done anew. From then on the stand-in and
// the saved routes hold the CNI plugin's settings, and stay as they are.
func (t *Takeover) steps(bridge string) []step {
	unlessTaken := func(do func() error) func() error {
		return func() error {
			if _, taken, err := podLink(t.Link, names{StandIn: t.StandIn}); err != nil || taken {
				return err
			}
			return do()
		}
	}
	steps := []step{{"forget routes of an earlier attempt", unlessTaken(onLink(bridge, forgetRoutes))}}
	for i, r := range t.Routes {
		save := onLink(bridge, func(link netlink.Link) error { return saveRoute(link, r, i+1) })
		steps = append(steps, step{fmt.Sprintf("save route to %s", r.Destination), unlessTaken(save)})
	}
	nic := func(change func(netlink.Link) error) func() error { return onLink(t.NIC, change) }
	return append(steps,
		step{"add stand-in", unlessTaken(t.addStandIn)},
		step{"address stand-in", unlessTaken(onLink(t.StandIn, func(link netlink.Link) error { return ensureAddresses(link, t.Addresses) }))},
		step{"mark stand-in", unlessTaken(onLink(t.StandIn, func(link netlink.Link) error { return netlink.LinkSetAlias(link, standInAlias) }))},
		// A kernel before 6.2 renames no link that is up.
		step{"take pod interface down", t.unlessMoved(netlink.LinkSetDown)},
		step{"rename pod interface", t.unlessMoved(func(link netlink.Link) error { return netlink.LinkSetName(link, t.NIC) })},
		step{"rename stand-in", t.nameStandIn},
		step{"silence pod interface", Sysctl{Name: "net/ipv6/conf/" + t.NIC + "/disable_ipv6", Value: "1", Optional: true}.write},
		step{"strip pod interface", nic(func(link netlink.Link) error { return ensureAddresses(link, nil) })},
		step{"change pod interface's MAC", nic(t.changeMAC)},
		step{"put pod interface on the bridge", nic(func(link netlink.Link) error { return t.enslave(link, bridge) })},
		// Frames with the guest's own MAC may come back from the network: the bridge must not
		// take the guest to be there.
		step{"keep the bridge from learning", nic(func(link netlink.Link) error { return netlink.LinkSetLearning(link, false) })},
		step{"have the bridge forget the MAC", nic(t.shareMAC)},
		step{"bring pod interface up", nic(netlink.LinkSetUp)},
	)
}

// podLink returns the link that has the CNI plugin's settings: the pod's interface, or, after a
// takeover, its stand-in.
func podLink(name string, names names) (link netlink.Link, taken bool, err error) {
	link, err = netlink.LinkByName(names.StandIn)
	if err == nil && link.Attrs().Alias == standInAlias {
		return link, true, nil
	}
	if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, false, err
	}
	if link, err = netlink.LinkByName(name); err != nil {
		return nil, false, err
	}
	return link, link.Attrs().Alias == standInAlias, nil
}

// addStandIn adds a link that stays down. It is a dummy, or, on a kernel without dummies, a
// bridge without ports, which sends nothing either.
func (t *Takeover) addStandIn() error {
	mac, err := net.ParseMAC(t.MAC)
	if err != nil {
		return err
	}
	// An unfinished attempt may have left a stand-in, maybe with another plugin's settings.
	link, err := netlink.LinkByName(t.StandIn)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
		return fmt.Errorf("remove the former: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = t.StandIn, t.MTU, mac
	err = netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	}
	return err
}

// unlessMoved changes the pod's interface while it has its first name.
func (t *Takeover) unlessMoved(change func(netlink.Link) error) func() error {
	return func() error {
		link, err := netlink.LinkByName(t.Link)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil
		}
		if err != nil || link.Attrs().Alias == standInAlias {
			return err
		}
		return change(link)
	}
}

func (t *Takeover) nameStandIn() error {
	link, err := netlink.LinkByName(t.StandIn)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return err
	}
	return netlink.LinkSetName(link, t.Link)
}

func (t *Takeover) changeMAC(link netlink.Link) error {
	mac, err := net.ParseMAC(t.NICMAC)
	if err != nil {
		return err
	}
	return ensureMAC(link, mac)
}

// shareMAC removes the bridge's entry by which it takes frames for a port's MAC itself. The frames
// then go to the other port, which is the guest's.
func (t *Takeover) shareMAC(link netlink.Link) error {
	if !t.SharedMAC {
		return nil
	}
	mac, err := net.ParseMAC(t.NICMAC)
	if err != nil {
		return err
	}
	err = netlink.NeighDel(&netlink.Neigh{Family: unix.AF_BRIDGE, LinkIndex: link.Attrs().Index, HardwareAddr: mac, Flags: netlink.NTF_MASTER})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (t *Takeover) enslave(link netlink.Link, bridge string) error {
	master, err := netlink.LinkByName(bridge)
	if err != nil || link.Attrs().MasterIndex == master.Attrs().Index {
		return err
	}
	return netlink.LinkSetMaster(link, master)
}

// saveRoute saves a route over the bridge, which stays up from now on: the kernel keeps no
// route over a link that is down. order gives every route a key of its own.
func saveRoute(bridge netlink.Link, r Route, order int) error {
	route := &netlink.Route{Table: savedTableOf(bridge), LinkIndex: bridge.Attrs().Index, Dst: ipNetOf(r.Destination), Priority: order}
	if r.Gateway.IsValid() {
		route.Gw = r.Gateway.AsSlice()
		route.Flags = int(netlink.FLAG_ONLINK) // the kernel then looks up no route to the gateway
	} else {
		route.Scope = netlink.SCOPE_LINK
	}
	return netlink.RouteReplace(route)
}

func forgetRoutes(bridge netlink.Link) error {
	routes, err := savedOver(bridge)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if err := netlink.RouteDel(&r); err != nil {
			return fmt.Errorf("remove route to %s: %w", r.Dst, err)
		}
	}
	return nil
}

func savedRoutes(bridge string) ([]Route, error) {
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return nil, err
	}
	routes, err := savedOver(link)
	if err != nil {
		return nil, err
	}
	var out []Route
	for _, r := range routes {
		if route, ok := routeOf(r, netlink.FAMILY_V4); ok {
			out = append(out, route)
		}
	}
	return out, nil
}

// savedTableOf returns a table of the bridge's own: the kernel takes routes of one destination and
// one metric for the same route, whatever their link.
func savedTableOf(bridge netlink.Link) int {
	if bridge.Attrs().Name == bridgePrefix+firstLink {
		return savedTable
	}
	return savedTables | bridge.Attrs().Index
}

func savedOver(bridge netlink.Link) ([]netlink.Route, error) {
	filter := &netlink.Route{Table: savedTableOf(bridge), LinkIndex: bridge.Attrs().Index}
	return listRoutes(netlink.FAMILY_V4, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
}
