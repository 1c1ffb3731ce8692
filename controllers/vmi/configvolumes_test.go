package vmi

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// TestConfigDisksAreBooked: each disk of files is booked, and has room in the pod's folder in memory.
func TestConfigDisksAreBooked(t *testing.T) {
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

// TestTargetPodHasNoConfigVolumes: the pod that a guest moves to has none of the ConfigMaps, Secrets and tokens
// of config volumes, and starts although they are gone. Secrets that are not of config volumes stay.
func TestTargetPodHasNoConfigVolumes(t *testing.T) {
	var vmi v1.VirtualMachineInstance
	text := `{"metadata":{"name":"a","uid":"1"},"spec":{"domain":{"memory":{"guest":"64Mi"}},"volumes":[
		{"name":"a","configMap":{"name":"a"}},{"name":"b","secret":{"secretName":"b"}},{"name":"c","sysprep":{"secret":{"name":"c"}}},
		{"name":"d","serviceAccount":{"serviceAccountName":"d"}},{"name":"e","cloudInitNoCloud":{"secretRef":{"name":"e"}}}]}}`
	if err := json.Unmarshal([]byte(text), &vmi); err != nil {
		t.Fatal(err)
	}
	v1.Default(&vmi)
	files := func(pod *corev1.Pod) (names []string) {
		for _, m := range pod.Spec.Containers[0].VolumeMounts {
			if strings.HasPrefix(m.MountPath, layout.ConfigDir) {
				names = append(names, m.Name)
			}
		}
		for _, v := range pod.Spec.Volumes {
			if v.ConfigMap != nil || v.Secret != nil || v.Projected != nil {
				names = append(names, v.Name)
			}
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	first, target := files(Pod(&vmi, testConfig)), files(targetPod(&vmi, testMigration(), testConfig))
	if len(first) != 5 || !slices.Equal(first[:4], []string{"config-a", "config-b", "config-c", "config-d"}) {
		t.Errorf("the first pod has the files of %q", first)
	}
	if !slices.Equal(target, first[4:]) {
		t.Errorf("the target pod has the files of %q, want %q", target, first[4:])
	}
}
