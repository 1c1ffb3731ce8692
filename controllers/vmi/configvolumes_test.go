package vmi

import (
	"encoding/json"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestConfigOverhead: each disk of files is booked, and has room in the pod's folder in memory.
func TestConfigOverhead(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	v1.Default(vmi)
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))}
	vmi.Spec.Domain.CPU = &v1.CPU{Cores: 1, Sockets: 1, Threads: 1}
	booked, run := Overhead(vmi, false), runDirSize(vmi)
	vmi.Spec.Volumes = []v1.Volume{{ConfigMap: &v1.ConfigMapVolumeSource{}}, {Sysprep: &v1.SysprepSource{}}}
	for what, more := range map[string]int64{"overhead": Overhead(vmi, false) - booked, "folder": runDirSize(vmi) - run} {
		if more != 2*qemuargs.MaxPacked {
			t.Errorf("the %s of two disks of files is %d bytes, and each may have %d", what, more, qemuargs.MaxPacked)
		}
	}
}

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
