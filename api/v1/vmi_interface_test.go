package v1

import (
	"testing"
)

// TestPodInterfaceNamesAreKubeVirts: the names of a pod's interfaces are KubeVirt's.
func TestPodInterfaceNamesAreKubeVirts(t *testing.T) {
	for _, c := range []struct {
		network Network
		want    string
	}{
		{Network{Name: "red", Multus: &MultusNetwork{NetworkName: "lan"}}, "podb1f51a511f1"},
		{Network{Name: "red", Multus: &MultusNetwork{NetworkName: "lan", Default: true}}, "eth0"},
		{Network{Name: "red", Pod: &PodNetwork{}}, "eth0"},
	} {
		if got := c.network.Link(); got != c.want || len(got) > 15 {
			t.Errorf("%+v: %s, want %s", c.network, got, c.want)
		}
	}
	for _, c := range []struct{ text, namespace, name string }{{"lan", "own", "lan"}, {"office/lan", "office", "lan"}} {
		if namespace, name := (&MultusNetwork{NetworkName: c.text}).Definition("own"); namespace != c.namespace ||
			name != c.name {
			t.Errorf("%s: %s/%s", c.text, namespace, name)
		}
	}
}

// TestLeadingZerosOfANetworkAreDecimal: an address with leading zeros means the same to Kubeqemu as to KubeVirt.
func TestLeadingZerosOfANetworkAreDecimal(t *testing.T) {
	for text, want := range map[string]string{"10.10.010.0/24": "10.10.10.0/24", "010.001.000.000/16": "10.1.0.0/16",
		"10.0.2.0/24": "10.0.2.0/24", "fd10:0:2::/120": "fd10:0:2::/120"} {
		if got, err := ParseNetwork(text); err != nil || got.String() != want {
			t.Errorf("%s is %s (%v), want %s", text, got, err, want)
		}
	}
}
