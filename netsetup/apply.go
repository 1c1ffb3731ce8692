package netsetup

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// Apply brings the network namespace into the planned state, except for the tap
// (OpenTap). It may be repeated at any time and after a crash at any point;
// connections under way go on.
func Apply(netns ns.NetNS, plan *Plan) error {
	if err := replaceTables(netns, plan.Tables); err != nil {
		return fmt.Errorf("apply network plan: %w", err)
	}
	err := netns.Do(func(ns.NetNS) error {
		bridge, err := ensureBridge(plan.Bridge)
		if err != nil {
			return fmt.Errorf("set up bridge %q: %w", plan.Bridge.Name, err)
		}
		for _, s := range plan.Sysctls {
			if err := s.write(); err != nil {
				return err
			}
		}
		if err := netlink.LinkSetUp(bridge); err != nil {
			return fmt.Errorf("bring up bridge %q: %w", plan.Bridge.Name, err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("apply network plan: %w", err)
	}
	return nil
}

func ensureBridge(b Bridge) (netlink.Link, error) {
	mac, err := net.ParseMAC(b.MAC)
	if err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName(b.Name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr = b.Name, b.MTU, mac
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return nil, fmt.Errorf("add link: %w", err)
		}
		link, err = netlink.LinkByName(b.Name)
	}
	if err != nil {
		return nil, err
	}
	if link.Type() != "bridge" {
		return nil, fmt.Errorf("the name is taken by a link of type %q", link.Type())
	}
	if link.Attrs().HardwareAddr.String() != b.MAC {
		if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
			return nil, fmt.Errorf("set MAC %s: %w", b.MAC, err)
		}
	}
	if link.Attrs().MTU != b.MTU {
		if err := netlink.LinkSetMTU(link, b.MTU); err != nil {
			return nil, fmt.Errorf("set MTU %d: %w", b.MTU, err)
		}
	}
	return link, ensureAddresses(link, b.Addresses)
}

// ensureAddresses leaves an address that is already there alone: taking it away
// and back would drop its routes and neighbours.
func ensureAddresses(link netlink.Link, want []netip.Prefix) error {
	have, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	var kept []netip.Prefix
	for _, a := range have {
		p, ok := prefixOf(a.IPNet)
		switch {
		case ok && slices.Contains(want, p):
			kept = append(kept, p)
		case ok && p.Addr().IsLinkLocalUnicast(): // the kernel's own
		default:
			if err := netlink.AddrDel(link, &a); err != nil {
				return fmt.Errorf("remove address %s: %w", a.IPNet, err)
			}
		}
	}
	for _, p := range want {
		if slices.Contains(kept, p) {
			continue
		}
		if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: ipNetOf(p)}); err != nil {
			return fmt.Errorf("add address %s: %w", p, err)
		}
	}
	return nil
}

// write sets the value in the calling thread's network namespace: the kernel
// looks /proc/sys/net up by the thread that opens it.
func (s Sysctl) write() error {
	path := filepath.Join("/proc/sys", s.Name)
	have, err := os.ReadFile(path)
	if s.Optional && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read sysctl %s: %w", s.Name, err)
	}
	if strings.TrimSpace(string(have)) == s.Value {
		return nil
	}
	if err := os.WriteFile(path, []byte(s.Value), 0); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", s.Name, s.Value, err)
	}
	return nil
}
