package validation

import (
	"encoding/json"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// decodeJSON reads an object from JSON, as a user would write it.
func decodeJSON[T any](t *testing.T, text string) *T {
	t.Helper()
	object := new(T)
	if err := json.Unmarshal([]byte(text), object); err != nil {
		t.Fatal(err)
	}
	return object
}

func TestValidateForCluster(t *testing.T) {
	const bridge = `{"domain":{"devices":{"interfaces":[{"name":"m","masquerade":{}},{"name":"b","bridge":{}}]}},` +
		`"networks":[{"name":"m","pod":{}},{"name":"b","pod":{}}]}`
	const plugin = `{"domain":{"devices":{"interfaces":[{"name":"m","binding":{"name":"x"}}]}},` +
		`"networks":[{"name":"m","pod":{}}]}`
	const pluginName = "spec.domain.devices.interfaces[0].binding.name"
	const forbidden = `{"network":{"permitBridgeInterfaceOnPodNetwork":false}}`
	for _, tt := range []struct{ name, config, spec, want string }{
		{"default", `{}`, bridge, ""},
		{"permitted", `{"network":{"permitBridgeInterfaceOnPodNetwork":true}}`, bridge, ""},
		{"forbidden", forbidden, bridge, "spec.domain.devices.interfaces[1].bridge"},
		{"forbidden by default", forbidden, `{}`, "spec.domain.devices.interfaces[0].bridge"},
		{"no bridge", forbidden,
			`{"domain":{"devices":{"interfaces":[{"name":"m","masquerade":{}}]}},"networks":[{"name":"m","pod":{}}]}`, ""},
		{"machine types", `{"emulatedMachines":["pc-q35-9.*"]}`,
			`{"domain":{"machine":{"type":"pc-q35-9.2"},"devices":{"autoattachPodInterface":false}}}`, ""},
		{"another machine type", `{"emulatedMachines":["pc-q35-9.*"]}`,
			`{"domain":{"machine":{"type":"pc-q35-7.2"},"devices":{"autoattachPodInterface":false}}}`,
			"spec.domain.machine.type"},
		{"machine types of RHEL's", `{"emulatedMachines":["pc-q35-rhel9*"]}`,
			`{"domain":{"machine":{"type":"pc-q35-9.2"},"devices":{"autoattachPodInterface":false}}}`, ""},
		{"a version of q35", `{"emulatedMachines":["q35*"]}`,
			`{"domain":{"machine":{"type":"pc-q35-7.2"},"devices":{"autoattachPodInterface":false}}}`, ""},
		{"machine types of amd64",
			`{"emulatedMachines":["q35*"],"architectureConfiguration":{"amd64":{"emulatedMachines":["pc-q35-8.?"]}}}`,
			`{"domain":{"devices":{"autoattachPodInterface":false}}}`, "spec.domain.machine.type"},
		{"a version of virt",
			`{"emulatedMachines":["q35*"],"architectureConfiguration":{"arm64":{"emulatedMachines":["virt*"]}}}`,
			`{"architecture":"arm64","domain":{"machine":{"type":"virt-10.0"},"devices":{"autoattachPodInterface":false}}}`, ""},
		{"another machine type of arm64", `{"architectureConfiguration":{"arm64":{"emulatedMachines":["virt-11.*"]}}}`,
			`{"architecture":"arm64","domain":{"machine":{"type":"virt-10.0"},"devices":{"autoattachPodInterface":false}}}`,
			"spec.domain.machine.type"},
		{"bad pattern", `{"emulatedMachines":["[", "q35"]}`, `{"domain":{"devices":{"autoattachPodInterface":false}}}`, ""},
		{"plugin", `{"network":{"permitBridgeInterfaceOnPodNetwork":false,` +
			`"binding":{"x":{"domainAttachmentType":"managedTap","migration":{"method":"link-refresh"}}}}}`, plugin, ""},
		{"plugin not registered", `{"network":{"binding":{"y":{"domainAttachmentType":"managedTap"}}}}`, plugin, pluginName},
		{"no plugins", `{}`, plugin, pluginName},
		{"plugin with a sidecar", `{"network":{"binding":{"x":{"domainAttachmentType":"managedTap","sidecarImage":"x:1"}}}}`,
			plugin, pluginName},
		{"plugin with a network plugin",
			`{"network":{"binding":{"x":{"domainAttachmentType":"managedTap","networkAttachmentDefinition":"default/x"}}}}`,
			plugin, pluginName},
		{"plugin with tap", `{"network":{"binding":{"x":{"domainAttachmentType":"tap"}}}}`, plugin, pluginName},
		{"plugin with nothing", `{"network":{"binding":{"x":{}}}}`, plugin, pluginName},
		{"plugin with the downward API",
			`{"network":{"binding":{"x":{"domainAttachmentType":"managedTap","downwardAPI":"device-info"}}}}`, plugin,
			pluginName},
		{"plugin with an overhead",
			`{"network":{"binding":{"x":{"domainAttachmentType":"managedTap",` +
				`"computeResourceOverhead":{"requests":{"memory":"500Mi"}}}}}}`, plugin, pluginName},
		{"plugin that migrates in another way",
			`{"network":{"binding":{"x":{"domainAttachmentType":"managedTap","migration":{"method":"magic"}}}}}`, plugin,
			pluginName},
		{"bridge on another network", forbidden,
			`{"domain":{"devices":{"interfaces":[{"name":"b","bridge":{}}]}},"networks":[{"name":"b"}]}`, ""},
	} {
		vmi := &v1.VirtualMachineInstance{Spec: *decodeJSON[v1.VirtualMachineInstanceSpec](t, tt.spec)}
		v1.Default(vmi)
		errs := ValidateForCluster(vmi, decodeJSON[v1.KubeVirtConfiguration](t, tt.config))
		got := ""
		if len(errs) > 0 {
			got = errs[0].Field
		}
		if got != tt.want || len(errs) > 1 {
			t.Errorf("%s: %v, want one at %q", tt.name, errs, tt.want)
		}
	}
}
