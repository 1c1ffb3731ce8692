package remote

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// ErrAddress is wrapped by the error about a server at an address that is refused.
var ErrAddress = errors.New("a source may not have such an address unless the administrator permits it")

// Addresses says which addresses a source may not have.
type Addresses struct {
	// Node has the node's and the control plane's own addresses.
	Node []netip.Addr
	// Forbidden are refused besides those that are refused by their kind.
	Forbidden []netip.Prefix
	// Permitted are not refused, whatever else is said of them.
	Permitted []netip.Prefix
}

// metadata are addresses of clouds' metadata services that are not link-local: those of AWS, Google and
// Oracle in IPv6, and of Alibaba, Azure and Oracle.
func metadata() []netip.Addr {
	var all []netip.Addr
	for _, text := range []string{"fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "100.100.100.200", "168.63.129.16", "192.0.0.192"} {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// translations are prefixes of IPv6 addresses that stand for an IPv4 address, with the place of
// its first byte. A gateway leads them to the IPv4 address.
func translations() map[netip.Prefix]int {
	return map[netip.Prefix]int{
		netip.MustParsePrefix("::/96"):           12,
		netip.MustParsePrefix("64:ff9b::/96"):    12,
		netip.MustParsePrefix("64:ff9b:1::/48"):  12,
		netip.MustParsePrefix("::ffff:0:0:0/96"): 12,
		netip.MustParsePrefix("2002::/16"):       2,
	}
}

// check returns an error that wraps ErrAddress for an address that is refused.
func (a Addresses) check(address netip.Addr) error {
	address = address.WithZone("").Unmap()
	if err := a.checkOne(address); err != nil || address.Is4() {
		return err
	}
	bytes := address.As16()
	for prefix, first := range translations() {
		// ::1 has been judged as what it is.
		if prefix.Contains(address) && !address.IsLoopback() && !address.IsUnspecified() {
			return a.checkOne(netip.AddrFrom4([4]byte(bytes[first : first+4])))
		}
	}
	return nil
}

func (a Addresses) checkOne(address netip.Addr) error {
	has := func(p netip.Prefix) bool { return p.Contains(address) }
	if slices.ContainsFunc(a.Permitted, has) {
		return nil
	}
	kind := ""
	switch {
	case address.IsLoopback():
		kind = "a loopback address"
	case address.IsLinkLocalUnicast():
		kind = "a link-local address"
	case address.IsMulticast():
		kind = "a multicast address"
	case address.IsUnspecified(), address.Is4() && address.As4()[0] == 0:
		kind = "an unspecified address"
	case slices.Contains(metadata(), address):
		kind = "the address of a metadata service"
	case address == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		kind = "the broadcast address"
	case slices.ContainsFunc(a.Node, func(n netip.Addr) bool { return n.WithZone("").Unmap() == address }):
		kind = "an address of the node or of the API server"
	case slices.ContainsFunc(a.Forbidden, has):
		kind = "an address of the cluster"
	default:
		return nil
	}
	return fmt.Errorf("the server has %s: %w", kind, ErrAddress)
}

// control is a net.Dialer's Control: it judges the address that is dialled, after the name has
// been resolved.
func (a Addresses) control(_, address string, _ syscall.RawConn) error {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAddress, err)
	}
	return a.check(parsed.Addr())
}
