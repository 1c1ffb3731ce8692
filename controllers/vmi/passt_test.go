package vmi

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
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

// TestMovedPasstGuestKeepsItsFirstAddress: a guest that moves keeps the address of its first pod, and passt
// sends to this address what comes for the guest.
func TestMovedPasstGuestKeepsItsFirstAddress(t *testing.T) {
	vmi := load(t, "testdata/passt")
	pod := Pod(vmi, testConfig)
	if got := guestAddress(pod); got != "" {
		t.Errorf("a pod without an address: %q", got)
	}
	for i, ip := range []string{"10.1.2.3", "10.9.9.9", "10.8.8.8"} {
		if given := slices.Contains(pod.Spec.InitContainers[0].Command, addressOption+"10.1.2.3"); given != (i > 0) {
			t.Errorf("in pod %d passt's command is %q", i, pod.Spec.InitContainers[0].Command)
		}
		pod.Status.PodIPs = []corev1.PodIP{{IP: "fd00::7"}, {IP: "127.0.0.1"}, {IP: ip}}
		config := testConfig
		if config.GuestAddress = guestAddress(pod); config.GuestAddress != "10.1.2.3" {
			t.Errorf("from pod %d the guest takes the address %q along", i, config.GuestAddress)
		}
		pod = targetPod(vmi, testMigration(), config)
	}
}

// TestVMISaysThatPasstHasEnded: the VMI says which interface has lost its network, only if passt has ended
// before QEMU, and not for ever.
func TestVMISaysThatPasstHasEnded(t *testing.T) {
	ended := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: code}}
	}
	pod := func(passt corev1.ContainerStatus) *corev1.Pod {
		passt.Name = layout.PasstContainer("default")
		return &corev1.Pod{Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{passt},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: ContainerName, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}}
	}
	vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running}}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "lan"},
		{Name: "default", PasstBinding: &v1.InterfacePasstBinding{}}}
	status := &vmi.Status
	observeSidecars(vmi, pod(corev1.ContainerStatus{LastTerminationState: ended(1)}), metav1.Now())
	if c := status.Condition(v1.ConditionNetworkFailed); c != nil {
		t.Errorf("ended before the guest began: %+v", c)
	}
	for name, lost := range map[string]corev1.ContainerStatus{"has ended": {State: ended(sidecar.ExitLost)},
		"has ended, and ends again": {LastTerminationState: ended(sidecar.ExitLost)}} {
		observeSidecars(vmi, pod(lost), metav1.Now())
		c := status.Condition(v1.ConditionNetworkFailed)
		if c == nil || c.Status != metav1.ConditionTrue || c.Reason != v1.ReasonPasstEnded ||
			!strings.Contains(c.Message, ": default (the log of its container passt-default says more)") {
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
