package qemuargs

import (
	"fmt"
	"net/netip"
)

// UserNetwork is a network inside QEMU (libslirp). QEMU makes the guest's connections anew with
// sockets of its own, so it needs no right on the host. The guest sees the same card as with a
// tap, without the offloads that only a tap has. All addresses are IPv4.
type UserNetwork struct {
	Network netip.Prefix `json:"network"`
	// Router, Guest and DNS are three addresses of the network: QEMU's own, the one that DHCP
	// gives the guest, and that of a name server that asks the host's.
	Router netip.Addr `json:"router"`
	Guest  netip.Addr `json:"guest"`
	DNS    netip.Addr `json:"dns"`
	// Hostname is told to the guest by DHCP.
	Hostname string `json:"hostname,omitempty"`
	// Forwards are the ports of the host that lead to the guest.
	Forwards []Forward `json:"forwards,omitempty"`
}

// Protocol is a transport protocol by QEMU's name.
type Protocol string

// Protocols.
const (
	TCP Protocol = "tcp"
	UDP Protocol = "udp"
)

// Forward is a port of the host that leads to a port of the guest.
type Forward struct {
	Protocol Protocol `json:"protocol"`
	// Address and Port are the host's, on which QEMU listens.
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	// GuestPort is a port of UserNetwork.Guest.
	GuestPort uint16 `json:"guestPort"`
}

type userProps struct {
	Type      string       `json:"type"`
	ID        string       `json:"id"`
	IPv6      bool         `json:"ipv6"`
	Network   string       `json:"net"`
	Host      string       `json:"host"`
	DHCPStart string       `json:"dhcpstart"`
	DNS       string       `json:"dns"`
	Hostname  string       `json:"hostname,omitempty"`
	Forwards  []userString `json:"hostfwd,omitempty"`
}

// userString is the element of a list of strings in QEMU's NetdevUserOptions.
type userString struct {
	Text string `json:"str"`
}

func (u *UserNetwork) netdev(id string) any {
	// The guest has IPv4 alone, as in a pod that has no IPv6 address (package netsetup).
	p := userProps{Type: "user", ID: id, IPv6: false, Network: u.Network.String(), Host: u.Router.String(),
		DHCPStart: u.Guest.String(), DNS: u.DNS.String(), Hostname: u.Hostname}
	for _, f := range u.Forwards {
		p.Forwards = append(p.Forwards, userString{fmt.Sprintf("%s:%s:%d-%s:%d", f.Protocol, f.Address, f.Port, u.Guest, f.GuestPort)})
	}
	return p
}
