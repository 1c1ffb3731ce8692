package sidecar

import (
	"errors"
	"net/netip"
	"strconv"
)

// ErrNoAddress: the pod's interface has no address with which passt could connect anything.
var ErrNoAddress = errors.New("it has no address")

// unused is an IPv4 address that no guest gets, for pods without IPv4 (RFC 3927).
const unused = "169.254.75.11"

// Outbound returns passt's options for a pod whose interface link has these addresses. guest is the IPv4 address of a
// guest that comes from another pod; not valid for others.
//
// The options keep the guest's packets off the pod's loopback. passt itself refuses 127.0.0.0/8 and ::1, but sends what
// a guest sends to ::ffff:127.0.0.1. A socket that is bound to an interface does not reach the loopback. passt binds no
// socket of IPv4 unless it has an IPv4 address for the guest, and takes ::ffff:127.0.0.1 for IPv4. So where the pod has
// IPv6 alone, passt has an address that passt tells no guest. Without IPv6, passt takes no packet of IPv6.
func Outbound(link string, addresses []netip.Prefix, guest netip.Addr) ([]string, error) {
	var v4, v6 netip.Prefix
	for _, a := range addresses {
		switch {
		case a.Addr().Is4() && !v4.IsValid():
			v4 = a
		case a.Addr().Is6() && !a.Addr().IsLinkLocalUnicast():
			v6 = a
		}
	}
	options := []string{"--outbound-if4=" + link}
	if v4.IsValid() && guest.IsValid() {
		// Without a netmask, passt takes that of the address's class.
		options = append(options, "--address="+guest.String(), "--netmask="+strconv.Itoa(v4.Bits()))
	}
	switch {
	case !v4.IsValid() && !v6.IsValid():
		return nil, ErrNoAddress
	case !v4.IsValid():
		options = append(options, "--address="+unused, "--no-dhcp")
	case !v6.IsValid():
		return append(options, "--ipv4-only"), nil
	}
	return append(options, "--outbound-if6="+link), nil
}
