package kit

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// WhoFailed returns which container before a pod's first one has failed, and its last words; "" if none has. The
// kubelet ends the containers that it would start again when the pod ends, so their status says nothing.
func WhoFailed(pod *corev1.Pod) string {
	again := map[string]bool{}
	for _, c := range pod.Spec.InitContainers {
		again[c.Name] = c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	}
	for _, c := range pod.Status.InitContainerStatuses {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 && !again[c.Name] {
			// The image may have written anything.
			said := cmp.Or(control.Printable(t.Message, maxEnd), fmt.Sprintf("exit code %d (%s)", t.ExitCode, t.Reason))
			return fmt.Sprintf("its container %s failed: %s", c.Name, said)
		}
	}
	return ""
}
