package e2e

import (
	"strconv"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// A VLAN of the LAN's wire, with one machine. The plugin vlan takes the tags off: the kernel of this test's machines may have
// no bridges that know VLANs.
const (
	vlanMachine = "192.168.20.9"
	vlanGuest   = "192.168.20.2"
)

var vlanNetwork = network("vlan-20", `{"cniVersion": "1.0.0", "name": "vlan-20", "type": "vlan", "master": "eth2", "vlanId": 20, "ipam": {}}`)

// newVLAN puts a machine into VLAN 20 of the LAN.
func (l lan) newVLAN() lan {
	l.t.Helper()
	netns, pid := newNetNS(l.t)
	far := lan{t: l.t, netns: netns}
	l.inside("ip", "link", "add", "link", "switch", "name", "vlan20", "type", "vlan", "id", "20")
	l.inside("ip", "link", "set", "vlan20", "netns", strconv.Itoa(pid))
	far.inside("ip", "address", "add", vlanMachine+"/24", "dev", "vlan20")
	far.inside("ip", "link", "set", "vlan20", "up")
	return far
}

// TestRouter: a Debian guest with the pod network, a card on the LAN and a card in a VLAN of the LAN routes between the
// two. A machine of the LAN and a machine of the VLAN exchange a million bytes each way, and no other way leads from one
// to the other.
func TestRouter(t *testing.T) {
	ns := namespace(t)
	l := newLAN(t)
	far := l.newVLAN()
	installMultus(t)
	apply(t, ns, lanNetwork+vlanNetwork)
	m := create(t, ns, tiny("router", debian("ssh-ed25519 AAAA"), on("lan", "lan"), on("vlan", "vlan-20"), routes))
	m.await(v1.Running)
	leased := l.awaitLease(m, "lan")

	l.inside("ip", "route", "add", "192.168.20.0/24", "via", leased)
	far.inside("ip", "route", "add", "192.168.77.0/24", "via", vlanGuest)
	l.serve(8080)
	far.serve(8080)
	for _, way := range []struct {
		name, to string
		from     lan
	}{{"the LAN to the VLAN", vlanMachine, l}, {"the VLAN to the LAN", lanAddress, far}} {
		if err := poll(4*time.Minute, func() error { return way.from.echoes(way.to, 8080, 1_000_000) }); err != nil {
			t.Errorf("from %s: %v", way.name, err)
		}
	}
	// The guest's end of the VLAN is not on the LAN itself: without the guest's route nothing gets there.
	l.inside("ip", "route", "del", "192.168.20.0/24")
	if conn, err := l.dial(vlanMachine, 8080); err == nil {
		conn.Close()
		t.Error("the LAN reaches the VLAN without the guest")
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
  enp3s0: {addresses: [` + vlanGuest + `/24]}
`
	seed.UserData += "bootcmd:\n- sysctl -w net.ipv4.ip_forward=1\n"
}
