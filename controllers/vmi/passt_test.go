package vmi

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
)

func TestPasstPorts(t *testing.T) {
	list := []v1.Port{{Port: 22}, {Port: 53, Protocol: "UDP"}, {Port: 80, Protocol: "TCP"}, {Name: "again", Port: 22}}
	for protocol, want := range map[string]string{"TCP": "22,80", "UDP": "53"} {
		if got := ports(list, protocol); got != want {
			t.Errorf("%s: %q, want %q", protocol, got, want)
		}
	}
	if got := ports(list[:1], "UDP"); got != "none" {
		t.Errorf("no port of UDP: %q", got)
	}
}

// TestPasstEnds: the VMI says which interface has lost its network, only if passt has ended before QEMU, and not for ever.
func TestPasstEnds(t *testing.T) {
	ended := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: code}}
	}
	pod := func(passt corev1.ContainerStatus) *corev1.Pod {
		passt.Name = v1.PasstContainerPrefix + "1"
		return &corev1.Pod{Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{passt},
			ContainerStatuses: []corev1.ContainerStatus{{Name: ContainerName, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}}
	}
	vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running}}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "lan"}, {Name: "default", PasstBinding: &v1.InterfacePasstBinding{}}}
	status := &vmi.Status
	observeSidecars(vmi, pod(corev1.ContainerStatus{LastTerminationState: ended(1)}), metav1.Now())
	if c := status.Condition(v1.ConditionNetworkFailed); c != nil {
		t.Errorf("ended before the guest began: %+v", c)
	}
	for name, lost := range map[string]corev1.ContainerStatus{"has ended": {State: ended(sidecar.ExitLost)}, "has ended, and ends again": {LastTerminationState: ended(sidecar.ExitLost)}} {
		observeSidecars(vmi, pod(lost), metav1.Now())
		c := status.Condition(v1.ConditionNetworkFailed)
		if c == nil || c.Status != metav1.ConditionTrue || c.Reason != v1.ReasonPasstEnded || !strings.Contains(c.Message, ": default (the log of its container passt-1 says more)") {
			t.Errorf("%s: %+v", name, c)
		}
		if c := status.Condition(v1.ConditionFilesystemFailed); c != nil {
			t.Errorf("%s: a file system: %+v", name, c)
		}
		observeSidecars(vmi, pod(corev1.ContainerStatus{}), metav1.Now()) // the guest has moved
		if c := status.Condition(v1.ConditionNetworkFailed); c != nil {
			t.Errorf("in another pod: %+v", c)
		}
	}
}
