package e2e

import (
	"strconv"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// The machine of a second wire, and the guest's address there.
const (
	farMachine = "192.168.20.9"
	farGuest   = "192.168.20.2"
)

var farNetwork = network("far", `{"cniVersion": "1.0.0", "name": "far", "type": "bridge", "bridge": "br-far", "ipam": {}}`)

// newFarWire connects a machine to the first node's bridge br-far, and to nothing else, until the test ends.
func newFarWire(t *testing.T) lan {
	t.Helper()
	netns, _ := newNetNS(t)
	far := lan{t: t, netns: netns}
	far.inside("ip", "link", "add", "wire", "type", "veth", "peer", "name", "eth3", "netns", strconv.Itoa(nodePID(t, firstName)))
	far.inside("ip", "address", "add", farMachine+"/24", "dev", "wire")
	far.inside("ip", "link", "set", "wire", "up")
	if _, err := onNode(`ip link add br-far type bridge && ip link set eth3 master br-far && ip link set eth3 up && ip link set br-far up`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := onNode(`ip link del br-far; ip link del eth3`); err != nil {
			t.Error(err)
		}
	})
	return far
}

// TestGuestRoutesBetweenTwoNetworks: a Debian guest with the pod network, a card on the LAN and a card on another wire routes between the two. A
// machine of each exchange a million bytes both ways, and no other way leads from one to the other.
func TestGuestRoutesBetweenTwoNetworks(t *testing.T) {
	ns := namespace(t)
	l := newLAN(t)
	far := newFarWire(t)
	installMultus(t)
	apply(t, ns, lanNetwork+farNetwork)
	m := create(t, ns, tiny("router", debian("ssh-ed25519 AAAA"), on("lan", "lan"), on("far", "far"), routes))
	m.await(v1.Running)
	leased := l.awaitLease(m, "lan")

	l.inside("ip", "route", "add", "192.168.20.0/24", "via", leased)
	far.inside("ip", "route", "add", "192.168.77.0/24", "via", farGuest)
	l.serve(8080)
	far.serve(8080)
	for _, way := range []struct {
		name, to string
		from     lan
	}{{"the LAN to the other wire", farMachine, l}, {"the other wire to the LAN", lanAddress, far}} {
		if err := poll(func() error { return way.from.echoes(way.to, 8080, 1_000_000) }); err != nil {
			t.Errorf("from %s: %v", way.name, err)
		}
	}
	l.inside("ip", "route", "del", "192.168.20.0/24")
	if conn, err := l.dial(farMachine, 8080); err == nil {
		conn.Close()
		t.Error("the LAN reaches the other wire without the guest")
	}
	m.delete()
}

// routes has the Debian guest route between its second and its third card.
func routes(s *v1.VirtualMachineInstanceSpec) {
	seed := s.Volumes[len(s.Volumes)-1].CloudInitNoCloud
	seed.NetworkData = `version: 2
ethernets:
  enp1s0: {dhcp4: true}
  enp2s0: {dhcp4: true}
  enp3s0: {addresses: [` + farGuest + `/24]}
`
	seed.UserData += "bootcmd:\n- sysctl -w net.ipv4.ip_forward=1\n"
}
