package v1

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
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

func TestApplyClusterDefaults(t *testing.T) {
	const masquerade = `{"network":{"defaultNetworkInterface":"masquerade"}}`
	const defaultNetwork = `{"domain":{"devices":{"interfaces":[{"name":"default","masquerade":{}}]}},` +
		`"networks":[{"name":"default","pod":{}}]}`
	tests := []struct{ name, config, spec, want string }{
		{"nothing", `{}`, `{}`, `{}`},
		{"CPU model", `{"cpuModel":"Nehalem"}`, `{}`, `{"domain":{"cpu":{"model":"Nehalem"}}}`},
		{"CPU model beside cores", `{"cpuModel":"Nehalem"}`, `{"domain":{"cpu":{"cores":2}}}`,
			`{"domain":{"cpu":{"cores":2,"model":"Nehalem"}}}`},
		{"CPU model is set", `{"cpuModel":"Nehalem"}`, `{"domain":{"cpu":{"model":"host-passthrough"}}}`,
			`{"domain":{"cpu":{"model":"host-passthrough"}}}`},
		{"machine type, deprecated name", `{"machineType":"pc-q35-7.2"}`, `{}`,
			`{"domain":{"machine":{"type":"pc-q35-7.2"}}}`},
		{"machine type", `{"architectureConfiguration":{"amd64":{"machineType":"pc-q35-8.0"}}}`, `{"architecture":"amd64"}`,
			`{"architecture":"amd64","domain":{"machine":{"type":"pc-q35-8.0"}}}`},
		{"both machine types",
			`{"machineType":"pc-q35-7.2","architectureConfiguration":{"amd64":{"machineType":"pc-q35-8.0"}}}`, `{}`,
			`{"domain":{"machine":{"type":"pc-q35-8.0"}}}`},
		{"empty amd64", `{"machineType":"pc-q35-7.2","architectureConfiguration":{"amd64":{}}}`, `{}`,
			`{"domain":{"machine":{"type":"pc-q35-7.2"}}}`},
		{"machine type is set", `{"machineType":"pc-q35-7.2"}`, `{"domain":{"machine":{"type":"q35"}}}`,
			`{"domain":{"machine":{"type":"q35"}}}`},
		{"machine type of arm64",
			`{"machineType":"pc-q35-7.2","architectureConfiguration":{"arm64":{"machineType":"virt-10.0"}}}`,
			`{"architecture":"arm64"}`, `{"architecture":"arm64","domain":{"machine":{"type":"virt-10.0"}}}`},
		{"default architecture", `{"cpuModel":"Nehalem","architectureConfiguration":{"defaultArchitecture":"arm64"}}`, `{}`,
			`{"architecture":"arm64"}`},
		{"default architecture, and a machine type", `{"architectureConfiguration":{"defaultArchitecture":"arm64"}}`,
			`{"domain":{"machine":{"type":"pc-q35-7.2"}}}`, `{"domain":{"machine":{"type":"pc-q35-7.2"}}}`},
		{"another architecture", `{"machineType":"pc-q35-7.2"}`, `{"architecture":"arm64"}`, `{"architecture":"arm64"}`},
		{"masquerade", masquerade, `{}`, defaultNetwork},
		{"bridge is Default's", `{"network":{"defaultNetworkInterface":"bridge"}}`, `{}`, `{}`},
		{"no interface wanted", masquerade, `{"domain":{"devices":{"autoattachPodInterface":false}}}`,
			`{"domain":{"devices":{"autoattachPodInterface":false}}}`},
		{"interface wanted", masquerade, `{"domain":{"devices":{"autoattachPodInterface":true}}}`,
			`{"domain":{"devices":{"autoattachPodInterface":true,` +
				`"interfaces":[{"name":"default","masquerade":{}}]}},"networks":[{"name":"default","pod":{}}]}`},
		{"only a network", masquerade, `{"networks":[{"name":"n","pod":{}}]}`, `{"networks":[{"name":"n","pod":{}}]}`},
		{"only an interface", masquerade, `{"domain":{"devices":{"interfaces":[{"name":"n","masquerade":{}}]}}}`,
			`{"domain":{"devices":{"interfaces":[{"name":"n","masquerade":{}}]}}}`},
		{"no log", `{"virtualMachineOptions":{"disableSerialConsoleLog":{}}}`, `{}`,
			`{"domain":{"devices":{"logSerialConsole":false}}}`},
		{"log is set", `{"virtualMachineOptions":{"disableSerialConsoleLog":{}}}`,
			`{"domain":{"devices":{"logSerialConsole":true}}}`, `{"domain":{"devices":{"logSerialConsole":true}}}`},
		{"log", `{"virtualMachineOptions":{}}`, `{}`, `{}`},
		{"eviction", `{"evictionStrategy":"LiveMigrateIfPossible"}`, `{}`, `{"evictionStrategy":"LiveMigrateIfPossible"}`},
		{"eviction is set", `{"evictionStrategy":"LiveMigrateIfPossible"}`, `{"evictionStrategy":"None"}`,
			`{"evictionStrategy":"None"}`},
		{"eviction by others", `{"evictionStrategy":"External"}`, `{}`, `{"evictionStrategy":"External"}`},
		{"eviction by migration", `{"evictionStrategy":"LiveMigrate"}`, `{}`, `{"evictionStrategy":"LiveMigrate"}`},
		{"set already", masquerade, defaultNetwork, defaultNetwork},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config := decodeJSON[KubeVirtConfiguration](t, tt.config)
			got := &VirtualMachineInstance{Spec: *decodeJSON[VirtualMachineInstanceSpec](t, tt.spec)}
			want := decodeJSON[VirtualMachineInstanceSpec](t, tt.want)
			for _, time := range []string{"first", "second"} {
				ApplyClusterDefaults(got, config)
				if diff := cmp.Diff(*want, got.Spec); diff != "" {
					t.Errorf("%s time, -want +got:\n%s", time, diff)
				}
			}
			if diff := cmp.Diff(decodeJSON[KubeVirtConfiguration](t, tt.config), config); diff != "" {
				t.Errorf("the configuration was changed:\n%s", diff)
			}
		})
	}
}

func TestKubeVirtCondition(t *testing.T) {
	var s KubeVirtStatus
	available := KubeVirtCondition{Type: KubeVirtConditionAvailable, Status: "True", Reason: "Up"}
	s.SetCondition(available, metav1.Unix(1, 0))
	s.SetCondition(KubeVirtCondition{Type: KubeVirtConditionDegraded, Status: "False"}, metav1.Unix(1, 0))
	available.Reason = "StillUp"
	s.SetCondition(available, metav1.Unix(2, 0))
	if c := s.Conditions[0]; c.Reason != "StillUp" || !c.LastTransitionTime.Equal(ptr.To(metav1.Unix(1, 0))) {
		t.Errorf("the same status: %+v", c)
	}
	available.Status = "False"
	s.SetCondition(available, metav1.Unix(3, 0))
	if c := s.Conditions[0]; !c.LastTransitionTime.Equal(ptr.To(metav1.Unix(3, 0))) || len(s.Conditions) != 2 {
		t.Errorf("another status: %+v", s.Conditions)
	}
}
