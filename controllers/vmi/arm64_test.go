package vmi

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestPodOfAnARM64Guest: a guest of arm64 goes to nodes of arm64. Emulated, it goes to nodes of amd64 with a
// launcher of its own, and books the memory of emulation.
func TestPodOfAnARM64Guest(t *testing.T) {
	const spec = `{"architecture":"arm64","domain":{"memory":{"guest":"1Gi"}}}`
	native, emulated := rendered(t, spec, `{}`),
		rendered(t, spec, `{"architectureConfiguration":{"arm64":{"useEmulation":true}}}`)
	amd64 := rendered(t, `{"domain":{"memory":{"guest":"1Gi"}}}`,
		`{"architectureConfiguration":{"arm64":{"useEmulation":true}}}`)
	for name, c := range map[string]struct {
		pod         *corev1.Pod
		arch, image string
	}{"native": {native, "arm64", "launcher"}, "emulated": {emulated, "amd64", "emulator"},
		"amd64": {amd64, "amd64", "launcher"}} {
		if arch, image := c.pod.Spec.NodeSelector[corev1.LabelArchStable], c.pod.Spec.Containers[0].Image; arch != c.arch ||
			image != c.image {
			t.Errorf("%s: image %s on nodes of %s", name, image, arch)
		}
	}
	memory := func(p *corev1.Pod) int64 { return p.Spec.Containers[0].Resources.Requests.Memory().Value() / mib }
	if more := memory(emulated) - memory(native); more != overheadEmulation/mib {
		t.Errorf("emulation books %d MiB", more)
	}
	if more := memory(native) - memory(amd64); more != (overheadUEFI+overheadARM64)/mib {
		t.Errorf("arm64 books %d MiB", more)
	}
}

// TestComplaintAboutARM64SaysWhatToDo: the scheduler's complaint about a guest of arm64 says what can be done.
func TestComplaintAboutARM64SaysWhatToDo(t *testing.T) {
	for arch, want := range map[string]bool{v1.ARM64: true, v1.AMD64: false} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelArchStable: arch}}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason:  "Unschedulable",
			Message: "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."}}
		var status v1.VirtualMachineInstanceStatus
		observeScheduling(&status, pod, metav1.Now())
		if c := status.Condition(v1.ConditionPodScheduled); c == nil || strings.Contains(c.Message, "useEmulation") != want {
			t.Errorf("%s: %+v", arch, c)
		}
	}
}
