package migration

import (
	"net/netip"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
)

// TestMoveNeedsThePodsAddressesOrNone: a guest moves to a pod that has its addresses, or none.
func TestMoveNeedsThePodsAddressesOrNone(t *testing.T) {
	vmi := nodetest.Beside()
	links := nodetest.BesideLinks(vmi)
	vmi.Status.Interfaces = []v1.NetworkInterfaceStatus{{Name: "default", IPs: []string{"10.244.7.7"}},
		{Name: "lan", IPs: []string{"192.168.1.50"}}, {Name: "given", IPs: []string{"192.0.2.9", "192.0.2.10"}},
		{InterfaceName: "br0", IP: "172.16.0.1"}}
	if err := sameAddresses(vmi, links); err != nil {
		t.Error(err)
	}
	vmi.Status.Interfaces[2].IPs = []string{"192.0.2.10"}
	if err := sameAddresses(vmi, links); err == nil || !strings.Contains(err.Error(),
		`network "given" gives the guest 192.0.2.9 on this node, and the guest has ["192.0.2.10"]`) {
		t.Errorf("got %v", err)
	}
	// Another address of the pod's than the first is not the guest's.
	vmi.Status.Interfaces[2].IPs = []string{"192.0.2.9"}
	given := links["given"]
	given.Addresses = append(given.Addresses, netip.MustParsePrefix("192.0.2.10/24"))
	links["given"] = given
	if err := sameAddresses(vmi, links); err == nil || !strings.Contains(err.Error(), "192.0.2.10 on this node") {
		t.Errorf("got %v", err)
	}
}
