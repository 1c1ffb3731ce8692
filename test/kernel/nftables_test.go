package kernel

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/netsetup"
)

// TestWithoutNFTables: a kernel that has no nftables, and cannot load it, is named. The wait for
// its answers ends.
func TestWithoutNFTables(t *testing.T) {
	if os.Getenv(withoutNFTables) == "" {
		t.Skip("THIS MACHINE'S KERNEL MAY HAVE nftables: make long runs this test in a guest before nftables is loaded")
	}
	facts := netsetup.Facts{Link: "eth0", MTU: 1500, MAC: "0a:58:0a:f4:00:05", Addresses: []netip.Prefix{netip.MustParsePrefix(podAddress + "/24")},
		Routes: []netsetup.Route{{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr(nodeAddress)}}}
	masquerade, err := netsetup.PlanMasquerade(facts, netsetup.Masquerade{})
	if err != nil {
		t.Fatal(err)
	}
	bridge, err := netsetup.PlanBridge(facts, netsetup.Bridged{MAC: "52:54:00:12:34:56"})
	if err != nil {
		t.Fatal(err)
	}
	for name, plan := range map[string]*netsetup.Plan{"masquerade": masquerade, "bridge": bridge} {
		err = netsetup.Apply(newNetNS(t), plan)
		if err == nil || !strings.Contains(err.Error(), "the kernel has no nftables: load the module nf_tables") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
