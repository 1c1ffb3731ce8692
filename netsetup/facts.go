package netsetup

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Facts is what the CNI plugin left in a pod's network namespace: all that a
// plan depends on.
type Facts struct {
	// Link is the name of the pod's interface, eth0 by the CRI's convention.
	Link string `json:"link"`
	// Index is the interface index within the pod's network namespace, of the
	// stand-in after a takeover. No plan depends on it.
	Index int `json:"index"`
	// Kind is the kind of link where a plan depends on it: macvlan, ipvlan, or device, which is a
	// network card of the node.
	Kind string `json:"kind,omitempty"`
	// MTU in bytes, without the Ethernet header.
	MTU int `json:"mtu"`
	// MAC in lower-case colon form.
	MAC string `json:"mac"`
	// Addresses are the global addresses, with prefix length, in ascending order: of both families
	// on the pod's own interface, and of IPv4 on others.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Routes are the main table's routes over Link that the kernel uses, in
	// ascending order of destination, of the same families; after a takeover those for IPv4.
	Routes []Route `json:"routes,omitempty"`
}

// Route is one route of the main table.
type Route struct {
	// Destination is 0.0.0.0/0 or ::/0 for a default route.
	Destination netip.Prefix `json:"destination"`
	// Gateway is unset for a destination that is on the link.
	Gateway netip.Addr `json:"gateway,omitzero"`
}

// Kinds of links that share a network card of the node, or are one.
const (
	kindMACVLAN = "macvlan"
	kindIPVLAN  = "ipvlan"
	kindDevice  = "device" // netlink's word for a link that a driver made, and nobody's command
)

// ErrNoLink means that the network namespace has no interface of the name.
var ErrNoLink = errors.New("there is no such interface")

// ReadFacts reads the interface called link in the network namespace netns, or what
// stands for it: the facts are the same before, during and after a Takeover. It
// changes nothing. Without the interface it fails with ErrNoLink.
func ReadFacts(netns ns.NetNS, link string) (Facts, error) {
	var facts Facts
	err := netns.Do(func(ns.NetNS) (err error) {
		facts, err = readFacts(link)
		return err
	})
	if err != nil {
		return Facts{}, fmt.Errorf("read pod interface %q: %w", link, err)
	}
	return facts, nil
}

func readFacts(name string) (Facts, error) {
	names, err := namesFor(name)
	if err != nil {
		return Facts{}, err
	}
	link, taken, err := podLink(name, names)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return Facts{}, ErrNoLink
	}
	if err != nil {
		return Facts{}, err
	}
	attrs := link.Attrs()
	facts := Facts{Link: name, Index: attrs.Index, MTU: attrs.MTU, MAC: attrs.HardwareAddr.String()}
	if facts.Kind, err = kindOf(name, names); err != nil {
		return Facts{}, fmt.Errorf("read its kind: %w", err)
	}
	families := familiesOf(name)
	if facts.Addresses, err = addressesOf(link, families); err != nil {
		return Facts{}, fmt.Errorf("list addresses: %w", err)
	}
	if taken {
		facts.Routes, err = savedRoutes(names.Bridge)
	} else {
		facts.Routes, err = mainRoutes(link, families)
	}
	if err != nil {
		return Facts{}, fmt.Errorf("list routes: %w", err)
	}
	// The kernel lists by hash; the facts must not depend on it.
	slices.SortFunc(facts.Addresses, netip.Prefix.Compare)
	slices.SortFunc(facts.Routes, func(a, b Route) int {
		return cmp.Or(a.Destination.Compare(b.Destination), a.Gateway.Compare(b.Gateway))
	})
	return facts, nil
}

// familiesOf are the address families that are read of the pod's interface called name. On a
// network beside the pod's own, any machine there can give the interface IPv6 addresses and routes
// without end, by router advertisements. No plan uses these, so they are not even counted.
func familiesOf(name string) []int {
	if name == firstLink {
		return []int{netlink.FAMILY_V4, netlink.FAMILY_V6}
	}
	return []int{netlink.FAMILY_V4}
}

// kindOf returns the kind of the pod's interface, which may have been renamed, if it is of those
// that a plan depends on.
func kindOf(name string, names names) (string, error) {
	link, err := netlink.LinkByName(names.NIC)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		link, err = netlink.LinkByName(name)
	}
	if err != nil {
		return "", err
	}
	// The plugin host-device, which can move a VLAN's link or a bond too, writes the link's name on the
	// node into the alias, and gives the link back by it.
	if alias := link.Attrs().Alias; name != firstLink && alias != "" && alias != standInAlias {
		return kindDevice, nil
	}
	switch kind := link.Type(); kind {
	case kindMACVLAN, kindIPVLAN, kindDevice:
		return kind, nil
	}
	return "", nil
}

// CNI plugins make far fewer. The listing of more stops at once, so that a namespace that
// somebody has filled does not fill this process's memory.
const (
	maxAddresses = 32
	maxRoutes    = 256
)

// ErrTooMany means that an interface has more addresses or routes than a pod's.
var ErrTooMany = errors.New("too many for a pod")

func addressesOf(link netlink.Link, families []int) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, family := range families {
		if err := listAddresses(link, family, &out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// listAddresses appends a link's addresses of a family.
func listAddresses(link netlink.Link, family int, out *[]netip.Prefix) error {
	// netlink.AddrList would hold all addresses in memory before the first is seen.
	request := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfAddrmsg(family))
	err := request.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWADDR, func(message []byte) bool {
		if p, ok := addressOf(message, link.Attrs().Index); ok && !p.Addr().IsLinkLocalUnicast() {
			*out = append(*out, p)
		}
		return len(*out) <= maxAddresses
	})
	if err == nil && len(*out) > maxAddresses {
		err = fmt.Errorf("%w: more than %d", ErrTooMany, maxAddresses)
	}
	return err
}

// addressOf reads an RTM_NEWADDR: the address of this side, with its prefix.
func addressOf(message []byte, index int) (netip.Prefix, bool) {
	if len(message) < unix.SizeofIfAddrmsg {
		return netip.Prefix{}, false
	}
	header := nl.DeserializeIfAddrmsg(message)
	attributes, err := nl.ParseRouteAttr(message[header.Len():])
	if err != nil || int(header.Index) != index {
		return netip.Prefix{}, false
	}
	var address, local netip.Addr
	for _, a := range attributes {
		switch a.Attr.Type {
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(a.Value)
		case unix.IFA_LOCAL: // of a link with a peer; IFA_ADDRESS is then the peer's
			local, _ = netip.AddrFromSlice(a.Value)
		}
	}
	if local.IsValid() && local != address {
		return host(local.Unmap()), true
	}
	return netip.PrefixFrom(address.Unmap(), int(header.Prefixlen)), address.IsValid()
}

// mainRoutes returns the main table's routes over a link. Of the routes to one destination,
// only those with the smallest metric count: a lease has no metrics, so the guest could take
// any.
func mainRoutes(link netlink.Link, families []int) ([]Route, error) {
	var out []Route
	for _, family := range families {
		routes, err := listRoutes(family, &netlink.Route{LinkIndex: link.Attrs().Index}, netlink.RT_FILTER_OIF)
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(routes, func(a, b netlink.Route) int { return cmp.Compare(a.Priority, b.Priority) })
		metric := map[netip.Prefix]int{}
		for _, r := range routes {
			route, ok := routeOf(r, family)
			if !ok || slices.Contains(out, route) {
				continue
			}
			if best, ok := metric[route.Destination]; ok && best < r.Priority {
				continue
			}
			metric[route.Destination] = r.Priority
			out = append(out, route)
		}
	}
	return out, nil
}

// listRoutes is netlink.RouteListFiltered with a bound.
func listRoutes(family int, filter *netlink.Route, mask uint64) (routes []netlink.Route, err error) {
	err = netlink.RouteListFilteredIter(family, filter, mask, func(r netlink.Route) bool {
		routes = append(routes, r)
		return len(routes) <= maxRoutes
	})
	if err == nil && len(routes) > maxRoutes {
		err = fmt.Errorf("%w: more than %d", ErrTooMany, maxRoutes)
	}
	return routes, err
}

// routeOf returns false for routes that the kernel makes by itself on every IPv6 link.
func routeOf(r netlink.Route, family int) (Route, bool) {
	dst := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if family == netlink.FAMILY_V6 {
		dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if r.Dst != nil {
		p, ok := prefixOf(r.Dst)
		if !ok {
			return Route{}, false
		}
		dst = p
	}
	if dst.Addr().Is6() && (dst.Addr().IsLinkLocalUnicast() || dst.Addr().IsMulticast()) {
		return Route{}, false
	}
	gateway, _ := netip.AddrFromSlice(r.Gw)
	return Route{Destination: dst, Gateway: gateway.Unmap()}, true
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr.Unmap(), ones), true
}

func ipNetOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
