package netsetup

import (
	"fmt"
	"os"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dhcp6Port is the server's (RFC 8415, 7.2).
const dhcp6Port = 547

// ListenIPv6 opens the sockets for a plan with IPv6, which see only the plan's bridge, i.e. only
// the guest: one for ICMPv6, which gets router solicitations and sends from the plan's router,
// and one for UDP on port 547. They are for the launcher, which may not open such sockets
// itself. Apply must have run.
func ListenIPv6(netns ns.NetNS, plan *Plan) (router, dhcp *os.File, err error) {
	err = netns.Do(func(ns.NetNS) (err error) {
		if router, err = listenRouter(plan); err == nil {
			dhcp, err = listenDHCP6(plan.Bridge.Name)
		}
		return err
	})
	if err != nil {
		if router != nil {
			router.Close()
		}
		return nil, nil, fmt.Errorf("listen for IPv6 on %q: %w", plan.Bridge.Name, err)
	}
	return router, dhcp, nil
}

// Groups that a router and a DHCPv6 server listen to.
var (
	allRouters     = [16]byte{0: 0xff, 1: 2, 15: 2}
	allDHCPServers = [16]byte{0: 0xff, 1: 2, 13: 1, 15: 2}
)

func listenRouter(plan *Plan) (*os.File, error) {
	name := plan.Bridge.Name
	// A bit that is set keeps a type of messages away (RFC 3542, 3.2).
	filter := &unix.ICMPv6Filter{}
	for i := range filter.Data {
		filter.Data[i] = ^uint32(0)
	}
	filter.Data[icmpRouterSolicitation>>5] &^= 1 << (icmpRouterSolicitation & 31)
	own := plan.IPv6.Router.As16()
	return listen6(name, unix.SOCK_RAW, unix.IPPROTO_ICMPV6, allRouters, func(fd, index int) []socketStep {
		set := func(option, value int) func() error {
			return func() error { return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, option, value) }
		}
		return []socketStep{
			{"filter", func() error { return unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, filter) }},
			// The receiver takes no other (RFC 4861, 6.1.2).
			{"set hop limit", set(unix.IPV6_MULTICAST_HOPS, 255)},
			{"keep from hearing itself", set(unix.IPV6_MULTICAST_LOOP, 0)},
			{"bind", func() error { return unix.Bind(fd, &unix.SockaddrInet6{Addr: own, ZoneId: uint32(index)}) }},
		}
	})
}

func listenDHCP6(name string) (*os.File, error) {
	return listen6(name, unix.SOCK_DGRAM, unix.IPPROTO_UDP, allDHCPServers, func(fd, _ int) []socketStep {
		return []socketStep{
			{"take IPv6 only", func() error { return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1) }},
			// See listenUDP.
			{"allow reuse", func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }},
			{"bind", func() error { return unix.Bind(fd, &unix.SockaddrInet6{Port: dhcp6Port}) }},
		}
	})
}

// socketStep is one change to a socket.
type socketStep struct {
	name string
	do   func() error
}

// listen6 opens a socket that is bound to a link, and joins a group there.
func listen6(device string, kind, protocol int, group [16]byte, steps func(fd, index int) []socketStep) (*os.File, error) {
	link, err := linkIndex(device)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "ipv6:"+device)
	all := []socketStep{{"bind to device", func() error { return unix.BindToDevice(fd, device) }}}
	all = append(all, steps(fd, link)...)
	all = append(all, socketStep{"join group", func() error {
		return unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: group, Interface: uint32(link)})
	}})
	for _, s := range all {
		if err := s.do(); err != nil {
			f.Close()
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return f, nil
}

func linkIndex(name string) (int, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0, err
	}
	return link.Attrs().Index, nil
}
