package kit

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestWhyItWaits: of a container that is started again and again, the end of the last attempt is told, in bounds.
func TestWhyItWaits(t *testing.T) {
	c := &corev1.ContainerStatus{}
	c.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
		Message: "back-off 10s restarting failed container"}
	if got := WhyItWaits(c); got != c.State.Waiting.Message {
		t.Errorf("%q", got)
	}
	c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "StartError",
		Message: "exec: \"/kubeqemu/program\": permission denied\x1b" + strings.Repeat("x", 10_000)}
	const want = `back-off 10s restarting failed container; it has ended: exec: "/kubeqemu/program": permission deniedxxx`
	if got := WhyItWaits(c); !strings.HasPrefix(got, want) || len(got) > 1000 {
		t.Errorf("%q, want %q", got, want)
	}
}
