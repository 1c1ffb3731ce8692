package node

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// TestVMISaysWhatAnUnusualMTUKeepsFromIt: a VMI says of which networks the MTU keeps something from its guest, and why.
func TestVMISaysWhatAnUnusualMTUKeepsFromIt(t *testing.T) {
	for mtus, want := range map[[2]int]string{
		{1500, 0}:     "",
		{1280, 9216}:  "",
		{1450, 9000}:  "",
		{1500, 1279}:  `MTUTooSmall network "net1" has the MTU 1279: the guest has no IPv6 there`,
		{68, 1500}:    `MTUTooSmall network "net0" has the MTU 68: `,
		{1500, 60000}: `MTUTooLarge network "net1" has the MTU 60000: switches and cards of Ethernet carry 9216 at most`,
		{68, 60000}:   `MTUTooLarge network "net0" has the MTU 68: the guest has no IPv6 there, which needs 1280; network "net1" has the MTU 60000: `,
	} {
		vmi, network := &v1.VirtualMachineInstance{}, map[string]networkFacts{}
		for i, mtu := range mtus {
			name := fmt.Sprint("net", i)
			vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces, v1.Interface{Name: name})
			if mtu > 0 { // else the link was not read
				network[name] = networkFacts{nic: resolve.NIC{MTU: mtu}}
			}
		}
		observeMTU(vmi, network, metav1.Unix(1000, 0))
		got := vmi.Status.Condition(v1.ConditionUnusualMTU)
		if want == "" && got != nil || want != "" && (got == nil || got.Status != metav1.ConditionTrue || !strings.HasPrefix(got.Reason+" "+got.Message, want)) {
			t.Errorf("%v: %+v, want %q", mtus, got, want)
		}
		observeMTU(vmi, map[string]networkFacts{"net0": {nic: resolve.NIC{MTU: 1500}}}, metav1.Unix(1500, 0)) // net1 cannot be read just now
		if now := vmi.Status.Condition(v1.ConditionUnusualMTU); want != "" && (now == nil || *now != *got) {
			t.Errorf("%v, and one cannot be read: %+v", mtus, now)
		}
		observeMTU(vmi, map[string]networkFacts{"net0": {nic: resolve.NIC{MTU: 1500}}, "net1": {nic: resolve.NIC{MTU: 1500}}}, metav1.Unix(2000, 0))
		if got := vmi.Status.Condition(v1.ConditionUnusualMTU); got != nil {
			t.Errorf("%v, mended: %+v", mtus, got)
		}
	}
	beside := &v1.VirtualMachineInstance{}
	beside.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "net0"}, {Name: "card", SRIOV: &v1.InterfaceSRIOV{}}}
	for _, mtu := range []int{68, 1500} {
		observeMTU(beside, map[string]networkFacts{"net0": {nic: resolve.NIC{MTU: mtu}}}, metav1.Unix(1000, 0))
		if got := beside.Status.Condition(v1.ConditionUnusualMTU); (got != nil) != (mtu == 68) {
			t.Errorf("beside a card of the node, with the MTU %d: %+v", mtu, got)
		}
	}
	crowd, network := &v1.VirtualMachineInstance{}, map[string]networkFacts{}
	for i := range 100 {
		name := fmt.Sprint("net", i)
		crowd.Spec.Domain.Devices.Interfaces = append(crowd.Spec.Domain.Devices.Interfaces, v1.Interface{Name: name})
		network[name] = networkFacts{nic: resolve.NIC{MTU: 68}}
	}
	observeMTU(crowd, network, metav1.Unix(1000, 0))
	if got := crowd.Status.Condition(v1.ConditionUnusualMTU).Message; len(got) > maxMessage || !strings.Contains(got, "96 networks more") {
		t.Errorf("of 100 networks: %q", got)
	}
}
