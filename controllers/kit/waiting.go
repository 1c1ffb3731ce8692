package kit

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// maxEnd bounds what is told of how a container has ended, in bytes.
const maxEnd = 500

// WhyItWaits returns the kubelet's words why a container waits. Of a container that ends each time it is started, the
// kubelet says there only that it is started again. So WhyItWaits adds how the container has ended, which may be words
// of a tenant's program.
func WhyItWaits(c *corev1.ContainerStatus) string {
	said := c.State.Waiting.Message
	if end := c.LastTerminationState.Terminated; end != nil && end.Message != "" {
		said += "; it has ended: " + control.Printable(end.Message, maxEnd)
	}
	return said
}
