package handover

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// TestConfigVolumes: the launcher is asked about each config volume, and what it says goes by the volume's name.
func TestConfigVolumes(t *testing.T) {
	var vmi v1.VirtualMachineInstance
	text := `{"spec":{"volumes":[{"name":"a","configMap":{"name":"x","volumeLabel":"L"}},{"name":"b","emptyDisk":{"capacity":"1Mi"}},{"name":"c","sysprep":{"secret":{"name":"y"}}}]}}`
	if err := json.Unmarshal([]byte(text), &vmi); err != nil {
		t.Fatal(err)
	}
	asked := Inspection(&vmi)
	if want := []control.ConfigVolume{{Volume: "a", Label: "L"}, {Volume: "c", Label: "unattendCD", AnswerFile: true}}; !reflect.DeepEqual(asked.ConfigVolumes, want) {
		t.Errorf("asked about %+v, want %+v", asked.ConfigVolumes, want)
	}
	var host resolve.Host
	facts := []qemuargs.ConfigFacts{{Size: 2048}, {Error: "no"}}
	if err := Take(&host, asked, control.InspectReply{ConfigVolumes: facts}); err != nil || host.ConfigVolumes["a"] != facts[0] || host.ConfigVolumes["c"] != facts[1] {
		t.Errorf("%+v (%v)", host.ConfigVolumes, err)
	}
	if err := Take(&host, asked, control.InspectReply{ConfigVolumes: facts[:1]}); !errors.Is(err, control.ErrProtocol) {
		t.Errorf("half an answer: %v", err)
	}
}

// TestClusterConfigurationIsAFactOfTheHost: what the cluster's configuration says of every machine is a fact of the host.
func TestClusterConfigurationIsAFactOfTheHost(t *testing.T) {
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

// TestCPUNodesAreAskedOnlyIfTheGuestSeesThem: the launcher is asked for its CPUs' nodes only if the guest sees them, and its answer is bounded.
func TestCPUNodesAreAskedOnlyIfTheGuestSeesThem(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	if Inspection(vmi).CPUs {
		t.Error("asked for a guest that sees no nodes")
	}
	vmi.Spec.Domain.CPU = &v1.CPU{NUMA: &v1.NUMA{GuestMappingPassthrough: &v1.NUMAGuestMappingPassthrough{}}}
	asked := Inspection(vmi)
	for _, tt := range []struct {
		nodes []int
		ok    bool
	}{{[]int{0}, true}, {[]int{0, 0, 3, 1023}, true}, {nil, false}, {[]int{-1}, false}, {[]int{1024}, false}, {[]int{1, 0}, false}, {make([]int, 8193), false}} {
		var host resolve.Host
		err := Take(&host, asked, control.InspectReply{CPUNodes: tt.nodes})
		if (err == nil) != tt.ok || !tt.ok && !errors.Is(err, control.ErrProtocol) || tt.ok && !reflect.DeepEqual(host.CPUNodes, tt.nodes) {
			t.Errorf("%d nodes: %v, %v", len(tt.nodes), host.CPUNodes, err)
		}
	}
	var host resolve.Host
	if err := Take(&host, control.InspectRequest{}, control.InspectReply{CPUNodes: []int{5}}); err != nil || host.CPUNodes != nil {
		t.Errorf("unasked: %v, %v", host.CPUNodes, err)
	}
}
