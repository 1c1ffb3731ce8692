package handover

import (
	"encoding/json"
	"reflect"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// TestConfigure: what the cluster's configuration says of every machine is a fact of the host.
func TestConfigure(t *testing.T) {
	for text, want := range map[string]resolve.Host{
		`{}`: {},
		`{"smbios":{"manufacturer":"Example","product":"Edge","version":"2","sku":"E-2","family":"Edges"},"virtualMachineOptions":{"disableFreePageReporting":{}}}`: {
			SMBIOS: qemuargs.SMBIOS{Manufacturer: "Example", Product: "Edge", Version: "2", SKU: "E-2", Family: "Edges"}, NoFreePageReporting: true},
		`{"smbios":{"product":"Edge"},"virtualMachineOptions":{}}`: {SMBIOS: qemuargs.SMBIOS{Product: "Edge"}},
	} {
		var config v1.KubeVirtConfiguration
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			t.Fatal(err)
		}
		var host resolve.Host
		if Configure(&host, &config); !reflect.DeepEqual(host, want) {
			t.Errorf("%s: %+v, want %+v", text, host, want)
		}
	}
}
