package vmi

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
)

// sharing returns a running pod whose container for the file system data has had these two last states.
func sharing(state, last corev1.ContainerState) *corev1.Pod {
	pod := podIn(corev1.PodRunning, running())
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{
		{Name: v1.FilesystemContainerPrefix + "settings", State: running()},
		{Name: v1.FilesystemContainerPrefix + "data", State: state, LastTerminationState: last},
	}
	return pod
}

func exited(code int32) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error",
		FinishedAt: metav1.Now()}}
}

// TestObserveFilesystems: only a container that says that QEMU has outlived virtiofsd makes the condition, at
// whatever time it has ended.
func TestObserveFilesystems(t *testing.T) {
	var none corev1.ContainerState
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	longAgo := exited(sidecar.ExitLost)
	longAgo.Terminated.FinishedAt = metav1.NewTime(time.Now().Add(-time.Hour))
	ending := sharing(exited(sidecar.ExitLost), none)
	ending.DeletionTimestamp = ptr.To(metav1.Now())
	stopped := sharing(exited(sidecar.ExitLost), none)
	stopped.Status.ContainerStatuses[1].State = exited(0)
	other := sharing(running(), none)
	other.Status.InitContainerStatuses = append(other.Status.InitContainerStatuses,
		corev1.ContainerStatus{Name: "of-a-webhook", State: exited(sidecar.ExitLost)})
	for name, c := range map[string]struct {
		phase v1.VirtualMachineInstancePhase
		pod   *corev1.Pod
		had   bool // the condition before
		want  bool
	}{
		"runs":                          {v1.Running, sharing(running(), none), false, false},
		"lost":                          {v1.Running, sharing(exited(sidecar.ExitLost), none), false, true},
		"lost, waits":                   {v1.Running, sharing(waiting, exited(sidecar.ExitLost)), false, true},
		"lost, tried anew":              {v1.Running, sharing(running(), exited(sidecar.ExitLost)), true, true},
		"lost, by a node's other clock": {v1.Running, sharing(waiting, longAgo), false, true},
		"killed, not tried anew yet":    {v1.Running, sharing(waiting, exited(137)), false, false},
		"failed before the guest":       {v1.Running, sharing(running(), exited(1)), false, false},
		"ended after the guest":         {v1.Running, sharing(exited(0), none), false, false},
		"another container":             {v1.Running, other, false, false},
		"starts":                        {v1.Scheduled, sharing(exited(sidecar.ExitLost), none), false, false},
		"ended":                         {v1.Succeeded, sharing(exited(sidecar.ExitLost), none), true, false},
		"the pod ends":                  {v1.Running, ending, false, false},
		"the pod ends, and said so":     {v1.Running, ending, true, true},
		"the launcher has ended":        {v1.Running, stopped, false, false},
		"another pod, after a move":     {v1.Running, sharing(running(), none), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: c.phase}}
			status := &vmi.Status
			if c.had {
				status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionFilesystemFailed,
					Status: metav1.ConditionTrue}, metav1.Now())
			}
			observeSidecars(vmi, c.pod, metav1.Now())
			got := status.Condition(v1.ConditionFilesystemFailed)
			if (got != nil) != c.want {
				t.Fatalf("the condition is %+v, want one: %v", got, c.want)
			}
			if got != nil && !c.had && (got.Reason != v1.ReasonVirtioFSDEnded ||
				!strings.HasSuffix(got.Message, ": data (the log of its container virtiofs-data says more)")) {
				t.Errorf("the condition is %+v", got)
			}
		})
	}
}
