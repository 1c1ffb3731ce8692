package launcher

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestFactsOfNetworkCards: the resource is virt-controller's word, and the cards are the device plugin's.
func TestFactsOfNetworkCards(t *testing.T) {
	const name = "KUBEVIRT_RESOURCE_NAME_fast-1"
	many := strings.Repeat("0000:3b:02.1,", 40)
	for i := range 8 {
		many += "0000:3b:00." + string(rune('0'+i)) + ",0000:3c:00." + string(rune('0'+i)) + ",0000:3d:00." +
			string(rune('0'+i)) + ",0000:3e:00." + string(rune('0'+i)) + ","
	}
	for title, tt := range map[string]struct {
		environment []string
		want        qemuargs.DeviceFacts
	}{
		"nothing": {nil, qemuargs.DeviceFacts{}},
		"no card": {[]string{name + "=intel.com/fast"}, qemuargs.DeviceFacts{Resource: "intel.com/fast"}},
		"one": {[]string{"PCIDEVICE_INTEL_COM_FAST=0000:3B:02.1", "PCIDEVICE_INTEL_COM_SLOW=0000:3b:02.2",
			name + "=intel.com/fast"}, qemuargs.DeviceFacts{Resource: "intel.com/fast", Addresses: []string{"0000:3b:02.1"}}},
		"two": {[]string{name + "=my-corp.io/fast-net",
			"PCIDEVICE_MY-CORP_IO_FAST_NET=0000:3b:02.1,0000:3b:02.2,0000:3b:02.1"},
			qemuargs.DeviceFacts{Resource: "my-corp.io/fast-net", Addresses: []string{"0000:3b:02.1", "0000:3b:02.2"}}},
		"not addresses": {[]string{name + "=intel.com/fast", "PCIDEVICE_INTEL_COM_FAST=../../x,0000:3b:02.9,mdev"},
			qemuargs.DeviceFacts{Resource: "intel.com/fast"}},
		"another's": {[]string{"KUBEVIRT_RESOURCE_NAME_slow=intel.com/fast", "PCIDEVICE_INTEL_COM_FAST=0000:3b:02.1"},
			qemuargs.DeviceFacts{}},
		"described again": {[]string{name + "=intel.com/fast", "PCIDEVICE_INTEL_COM_FAST_INFO={}",
			"PCIDEVICE_INTEL_COM_FAST=0000:3b:02.1"},
			qemuargs.DeviceFacts{Resource: "intel.com/fast", Addresses: []string{"0000:3b:02.1"}}},
	} {
		if diff := cmp.Diff(tt.want, deviceFacts(tt.environment, "fast-1")); diff != "" {
			t.Errorf("%s: -want +got:\n%s", title, diff)
		}
	}
	if got := deviceFacts([]string{name + "=intel.com/fast", "PCIDEVICE_INTEL_COM_FAST=" + many},
		"fast-1"); len(got.Addresses) != maxDevices {
		t.Errorf("of many there are %d", len(got.Addresses))
	}
}
