package sidecar

import (
	"errors"
	"net/netip"
)

// ErrNoAddress: the pod's interface has no address with which passt could connect anything.
var ErrNoAddress = errors.New("it has no address")

// Outbound are passt's options for a pod whose interface link has these addresses. They keep the guest's packets off the pod's loopback. passt itself
// refuses 127.0.0.0/8 and ::1, but sends what a guest sends to ::ffff:127.0.0.1. A socket that is bound to an interface does not reach the loopback.
// passt fails if it is to bind sockets of a family of which the interface has no address. So such a family is off.
func Outbound(link string, addresses []netip.Addr) ([]string, error) {
	var v4, v6 bool
	for _, a := range addresses {
		v4 = v4 || a.Is4()
		v6 = v6 || a.Is6() && !a.IsLinkLocalUnicast()
	}
	switch v4Out, v6Out := "--outbound-if4="+link, "--outbound-if6="+link; {
	case v4 && v6:
		return []string{v4Out, v6Out}, nil
	case v4:
		return []string{"--ipv4-only", v4Out}, nil
	case v6:
		return []string{"--ipv6-only", v6Out}, nil
	}
	return nil, ErrNoAddress
}
