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
	"golang.org/x/sys/unix"
)

// Apply brings the network namespace into the planned state, except for the tap (OpenTap). It
// may be repeated at any time, and after a crash at any point; established connections go on.
// Wired says of an error whether all is done but filters that the kernel cannot have.
func Apply(netns ns.NetNS, plan *Plan) error {
	unfiltered := replaceTables(netns, plan.Tables)
	if unfiltered != nil && !Wired(unfiltered) {
		return fmt.Errorf("apply network plan: %w", unfiltered)
	}
	err := netns.Do(func(ns.NetNS) error {
		for _, s := range plan.steps() {
			if err := s.do(); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		return nil
	})
	if err == nil {
		err = unfiltered
	}
	if err != nil {
		return fmt.Errorf("apply network plan: %w", err)
	}
	return nil
}

// step is one change. It checks itself whether the change was made before.
type step struct {
	name string
	do   func() error
}

// steps are the changes inside the network namespace. After a crash between any two, ReadFacts
// gives the facts that the plan was made of.
func (p *Plan) steps() []step {
	steps := []step{{fmt.Sprintf("set up bridge %q", p.Bridge.Name), func() error { return ensureBridge(p.Bridge) }}}
	for _, s := range p.Sysctls {
		steps = append(steps, step{"set sysctl", s.write})
	}
	// Only now: the kernel takes no IPv6 address for a link on which IPv6 is switched off.
	steps = append(steps, step{fmt.Sprintf("address bridge %q", p.Bridge.Name),
		onLink(p.Bridge.Name, func(link netlink.Link) error { return ensureAddresses(link, p.Bridge.Addresses) })})
	steps = append(steps, step{fmt.Sprintf("bring up bridge %q", p.Bridge.Name), onLink(p.Bridge.Name, netlink.LinkSetUp)})
	if p.Takeover != nil {
		steps = append(steps, p.Takeover.steps(p.Bridge.Name)...)
	}
	return steps
}

// onLink finds a link and changes it.
func onLink(name string, change func(netlink.Link) error) func() error {
	return func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return change(link)
	}
}

func ensureBridge(b Bridge) error {
	mac, err := net.ParseMAC(b.MAC)
	if err != nil {
		return err
	}
	link, err := netlink.LinkByName(b.Name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr = b.Name, b.MTU, mac
		// The bridge leads to one guest. Without snooping it keeps no multicast from the guest,
		// such as IPv6's neighbour discovery right after a migration.
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: new(bool)}); err != nil {
			return fmt.Errorf("add link: %w", err)
		}
		link, err = netlink.LinkByName(b.Name)
	}
	if err != nil {
		return err
	}
	if link.Type() != "bridge" {
		return fmt.Errorf("the name is taken by a link of type %q", link.Type())
	}
	if err := ensureMAC(link, mac); err != nil {
		return err
	}
	if link.Attrs().MTU != b.MTU {
		if err := netlink.LinkSetMTU(link, b.MTU); err != nil {
			return fmt.Errorf("set MTU %d: %w", b.MTU, err)
		}
	}
	return nil
}

func ensureMAC(link netlink.Link, mac net.HardwareAddr) error {
	if slices.Equal(link.Attrs().HardwareAddr, mac) {
		return nil
	}
	if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
		return fmt.Errorf("set MAC %s: %w", mac, err)
	}
	return nil
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
		address := &netlink.Addr{IPNet: ipNetOf(p)}
		if p.Addr().Is6() {
			address.Flags = unix.IFA_F_NODAD // it is of use at once
		}
		if err := netlink.AddrReplace(link, address); err != nil {
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
	if value := strings.TrimSpace(string(have)); value == s.Value || s.From != "" && value != s.From {
		return nil
	}
	if err := os.WriteFile(path, []byte(s.Value), 0); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", s.Name, s.Value, err)
	}
	return nil
}
