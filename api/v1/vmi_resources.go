package v1

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// pluginPrefix is that of the resources of KubeVirt's device plugins, as devices.kubevirt.io/kvm. A launcher pod asks
// for those that the guest needs.
const pluginPrefix = "devices.kubevirt.io/"

// IsPluginResource reports whether a resource is one of KubeVirt's device plugins. A VirtualMachineInstance's own
// request of one has no effect.
func IsPluginResource(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), pluginPrefix)
}
