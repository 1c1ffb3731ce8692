package vmi

import (
	"encoding/json"
	"slices"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestTargetWithoutFiles: a guest moves although its ConfigMaps and Secrets are gone, and starts only with those that it must
// have. Secrets that are not of config volumes stay needed.
func TestTargetWithoutFiles(t *testing.T) {
	var vmi v1.VirtualMachineInstance
	text := `{"metadata":{"name":"a","uid":"1"},"spec":{"domain":{"memory":{"guest":"64Mi"}},"volumes":[
		{"name":"a","configMap":{"name":"a"}},{"name":"b","secret":{"secretName":"b"}},{"name":"c","sysprep":{"secret":{"name":"c"}}},
		{"name":"d","serviceAccount":{"serviceAccountName":"d"}},{"name":"e","cloudInitNoCloud":{"secretRef":{"name":"e"}}}]}}`
	if err := json.Unmarshal([]byte(text), &vmi); err != nil {
		t.Fatal(err)
	}
	v1.Default(&vmi)
	optional := func(target bool) (names []string) {
		pod := Pod(&vmi, testConfig)
		if target {
			pod = targetPod(&vmi, testMigration(), testConfig)
		}
		for _, v := range pod.Spec.Volumes {
			if v.ConfigMap != nil && v.ConfigMap.Optional != nil && *v.ConfigMap.Optional || v.Secret != nil && v.Secret.Optional != nil && *v.Secret.Optional {
				names = append(names, v.Name)
			}
		}
		return names
	}
	if got := optional(false); len(got) > 0 {
		t.Errorf("the first pod starts without %q", got)
	}
	if got := optional(true); !slices.Equal(got, []string{"config-0", "config-1", "config-2"}) {
		t.Errorf("the target pod starts without %q", got)
	}
}
