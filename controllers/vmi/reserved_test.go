package vmi

import (
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestReservedKeysDoNotReachThePod: whatever a VMI has got past admission, its pods do not have. A pod with the
// label of a migration's target would count as one.
func TestReservedKeysDoNotReachThePod(t *testing.T) {
	vmi := besideVMI(t, besideSpec)
	vmi.Labels = map[string]string{"mine": "x", v1.MigrationJobLabel: "u", "kubevirt.io/nodeName": "n",
		"kubevirt.io/schedulable": "true"}
	vmi.Annotations = map[string]string{"mine": "x",
		"container.apparmor.security.beta.kubernetes.io/compute": "unconfined", "cdi.k8s.io/gpu": "vendor.com/gpu=0",
		"io.kubernetes.cri-o.Devices": "/dev/sda", v1.MigrationJobNameAnnotation: "m"}
	config := PodConfig{LauncherImage: "launcher"}
	for name, pod := range map[string]interface {
		GetLabels() map[string]string
		GetAnnotations() map[string]string
	}{"launcher": Pod(vmi, config), "consumer": Consumer(vmi, config)} {
		for kind, of := range map[string][2]map[string]string{"label": {vmi.Labels, pod.GetLabels()},
			"annotation": {vmi.Annotations, pod.GetAnnotations()}} {
			for key := range of[0] {
				if _, there := of[1][key]; there != (key == "mine") {
					t.Errorf("%s: %s %s: %v", name, kind, key, there)
				}
			}
		}
	}
}
