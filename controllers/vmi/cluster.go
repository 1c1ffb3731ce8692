package vmi

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// This file renders the cluster's configuration into a launcher pod. A nil configuration stands for
// an empty configuration.

// applyCluster gives a pod what the configuration says of all launcher pods.
func applyCluster(pod *corev1.Pod, config *v1.KubeVirtConfiguration) {
	spec := &pod.Spec
	if class := config.RuntimeClass(); class != "" {
		spec.RuntimeClassName = ptr.To(class)
	}
	if config.ImagePullPolicy != "" {
		launcher := &spec.Containers[0]
		launcher.ImagePullPolicy = config.ImagePullPolicy
		for i := range spec.InitContainers {
			if spec.InitContainers[i].Image == launcher.Image { // that of a container disk has its volume's policy
				spec.InitContainers[i].ImagePullPolicy = config.ImagePullPolicy
			}
		}
	}
	if profile := config.LocalhostProfile(); profile != "" {
		spec.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost,
			LocalhostProfile: ptr.To(profile)}
	}
	for key, value := range config.NodeSelectors() {
		if _, ok := spec.NodeSelector[key]; !ok {
			spec.NodeSelector[key] = value
		}
	}
	if d := config.DeveloperConfiguration; d != nil {
		if d.LogVerbosity != nil && d.LogVerbosity.VirtLauncher > 0 {
			spec.Containers[0].Command = append(spec.Containers[0].Command,
				"--verbosity="+strconv.Itoa(int(d.LogVerbosity.VirtLauncher)))
		}
	}
}
