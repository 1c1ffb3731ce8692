package v1

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReservedAnnotations: what a user may not have a pod told, and what a user may.
func TestReservedAnnotations(t *testing.T) {
	for key, want := range map[string]string{
		"container.apparmor.security.beta.kubernetes.io/compute": "the kubelet (AppArmor)",
		"seccomp.security.alpha.kubernetes.io/pod":               "the kubelet (seccomp)",
		"container.seccomp.security.alpha.kubernetes.io/compute": "the kubelet (seccomp)",
		"security.alpha.kubernetes.io/unsafe-sysctls":            "the kubelet (sysctls)",
		"kubernetes.io/config.mirror":                            "the kubelet",
		"kubernetes.io/config.source":                            "the kubelet",
		"io.kubernetes.cri-o.userns-mode":                        "CRI-O",
		"io.kubernetes.cri-o.Devices":                            "CRI-O",
		"io.kubernetes.cri-o.UnifiedCgroup/compute":              "CRI-O",
		"seccomp-profile.kubernetes.cri-o.io/compute":            "CRI-O",
		"io.kubernetes.cri.rdt-class":                            "containerd",
		"io.containerd.runc.v2.group":                            "containerd",
		"blockio.resources.beta.kubernetes.io/pod":               "the container runtime",
		"io.katacontainers.config.hypervisor.path":               "Kata Containers",
		"dev.gvisor.spec.mount.x.source":                         "gVisor",
		"run.oci.keep_original_groups":                           "the OCI runtime",
		"org.systemd.property.DeviceAllow":                       "the OCI runtime",
		"cdi.k8s.io/gpu":                                         "the container runtime (devices)",
		"devices.nri.io/container.compute":                       "plugins of the container runtime",
		"k8s.v1.cni.cncf.io/networks":                            "Multus",
		"k8s.v1.cni.cncf.io/resourceName":                        "Multus",
		"v1.multus-cni.io/default-network":                       "Multus",
		"kubectl.kubernetes.io/last-applied-configuration":       "kubectl",
		MigrationJobNameAnnotation:                               "virt-controller",

		"cluster-autoscaler.kubernetes.io/safe-to-evict": "",
		"cni.projectcalico.org/ipAddrs":                  "", // a pod's own address, within the cluster's pools
		"cpu-load-balancing.crio.io":                     "", // of the pod's own CPUs, and only where the runtime permits it
		"descheduler.alpha.kubernetes.io/evict":          "",
		"kubevirt.io/keep-launcher-alive-after-failure":  "",
		"example.com/cdi.k8s.io":                         "",
		"notcdi.k8s.io/x":                                "",
		"myio.kubernetes.cri-o.Devices":                  "",
		"kubernetes.io/description":                      "",
		"sidecar.istio.io/inject":                        "",
	} {
		if got := ReservedAnnotation(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

// TestReservedLabelsAreThePolicys: the labels that a template loses are those that the policy refuses in a user's
// VirtualMachineInstance.
func TestReservedLabelsAreThePolicys(t *testing.T) {
	text, err := os.ReadFile("../../config/api/vmi-update.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "- name: reserved\n")
	list, _, _ = strings.Cut(list, "]")
	keys := regexp.MustCompile(`'([^']+)'`).FindAllStringSubmatch(list, -1)
	for _, key := range keys {
		if !ReservedLabel(key[1]) {
			t.Errorf("%s is not reserved", key[1])
		}
	}
	if len(keys) != 7 {
		t.Errorf("the policy has %d labels: %s", len(keys), list)
	}
}

// reservedMetadata is a template's metadata, with keys that go no further.
var reservedMetadata = TemplateMeta{Labels: map[string]string{"a": "b", MigrationJobLabel: "x",
	"kubevirt.io/nodeName": "n", AppLabel: "y"},
	Annotations: map[string]string{"c": "d", "cdi.k8s.io/gpu": "vendor.com/gpu=0",
		"io.kubernetes.cri-o.Devices": "/dev/sda", "kubectl.kubernetes.io/x": "y"}}

// TestReservedKeysStayInTheTemplate: the instances of a template do not get them.
func TestReservedKeysStayInTheTemplate(t *testing.T) {
	vm := parsedVM(t, specText)
	vm.Spec.Template.ObjectMeta = reservedMetadata
	untouched := vm.DeepCopy()
	vmi := vm.Instance(plain, false)
	if diff := cmp.Diff(vmi.Labels, map[string]string{"a": "b", AppLabel: "y"}); diff != "" {
		t.Error(diff)
	}
	for key := range reservedMetadata.Annotations {
		if _, there := vmi.Annotations[key]; there != (key == "c") {
			t.Errorf("annotation %s: %v", key, there)
		}
	}
	if diff := cmp.Diff(untouched, vm); diff != "" {
		t.Errorf("the VM was changed: %s", diff)
	}
}
