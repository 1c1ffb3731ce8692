// Package images finds out how pods come by the images that are not their containers' own: container disks and kernels.
package images

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Way is how pods come by such images.
type Way string

// Ways.
const (
	// Volumes: an image is a volume of the pod (KEP-4639), from Kubernetes 1.35 on.
	Volumes Way = "volumes"
	// Containers: a container of the pod has the image, and hands out the image's files.
	Containers Way = "containers"
)

// world is what the way depends on.
type world struct {
	config *v1.KubeVirtConfiguration
	// served: the API server takes pods with image volumes.
	served bool
	// nodes are those that take guests.
	nodes []corev1.NodeSystemInfo
}

// decide returns the way. Without a node that takes guests it is Volumes, if the API server takes image volumes.
func decide(w world) Way {
	if way, decided := gated(w.config); decided {
		return way
	}
	if !w.served || slices.ContainsFunc(w.nodes, func(n corev1.NodeSystemInfo) bool { return !Mounts(n) }) {
		return Containers
	}
	return Volumes
}

// gated returns the way that the cluster's configuration names, and reports whether it names one.
func gated(config *v1.KubeVirtConfiguration) (way Way, decided bool) {
	switch {
	case config == nil || config.DeveloperConfiguration == nil:
	case slices.Contains(config.DeveloperConfiguration.DisabledFeatureGates, v1.ImageVolumeGate):
		return Containers, true
	case slices.Contains(config.DeveloperConfiguration.FeatureGates, v1.ImageVolumeGate):
		return Volumes, true
	}
	return "", false
}

// Mounts reports whether a node mounts image volumes without a gate: its kubelet is of 1.35 or newer, and its runtime
// is CRI-O, or containerd 2.1 or newer. A version that cannot be read is too old.
func Mounts(node corev1.NodeSystemInfo) bool {
	return atLeast(node.KubeletVersion, "1.35.0") && runtimeMounts(node.ContainerRuntimeVersion)
}

func runtimeMounts(runtime string) bool {
	name, release, _ := strings.Cut(runtime, "://")
	return name == "cri-o" && atLeast(release, "1.31.0") || name == "containerd" && atLeast(release, "2.1.0")
}

// atLeast reports whether a version is as new as another. Distributions add words of their own: v1.35.2+k3s1.
func atLeast(has, wanted string) bool {
	v, err := version.ParseGeneric(has)
	return err == nil && v.AtLeast(version.MustParseGeneric(wanted))
}
