package vmi

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// This file renders the cluster's configuration into a launcher pod. A nil configuration stands for
// an empty configuration.

// defaultAllocationRatio is how many vCPUs share a CPU that the pod requests (KubeVirt's
// cpuAllocationRatio).
const defaultAllocationRatio = 10

// cpuRequest is what a pod requests of the CPU if its VMI does not say.
func cpuRequest(vcpus int64, config *v1.KubeVirtConfiguration) resource.Quantity {
	ratio := int64(defaultAllocationRatio)
	if config != nil {
		if config.CPURequest != nil && config.CPURequest.Sign() > 0 {
			return config.CPURequest.DeepCopy()
		}
		if d := config.DeveloperConfiguration; d != nil && d.CPUAllocationRatio > 0 {
			ratio = int64(d.CPUAllocationRatio)
		}
	}
	return *resource.NewMilliQuantity(max(1000*vcpus/ratio, 1), resource.DecimalSI)
}

// guestRequest is what a pod requests of the memory for the guest's if its VMI does not say.
func guestRequest(guest *resource.Quantity, config *v1.KubeVirtConfiguration) resource.Quantity {
	if config == nil || config.DeveloperConfiguration == nil || config.DeveloperConfiguration.MemoryOvercommit <= 0 {
		return *guest
	}
	percent := int64(config.DeveloperConfiguration.MemoryOvercommit)
	bytes := guest.Value()
	return *resource.NewQuantity(bytes/percent*100+bytes%percent*100/percent, resource.BinarySI)
}

// scaled is the overhead times the configuration's additionalGuestMemoryOverheadRatio, in bytes.
func scaled(overhead int64, config *v1.KubeVirtConfiguration) int64 {
	if config == nil || config.AdditionalGuestMemoryOverheadRatio == nil {
		return overhead
	}
	ratio, err := strconv.ParseFloat(*config.AdditionalGuestMemoryOverheadRatio, 64)
	if err != nil || !(ratio > 1 && ratio <= maxOverheadRatio) {
		return overhead // the schema refuses such a text, and less than the overhead would get QEMU killed
	}
	return int64(float64(overhead) * ratio)
}

const maxOverheadRatio = 1000

// applyCluster gives a pod what the configuration says of all launcher pods.
func applyCluster(pod *corev1.Pod, config *v1.KubeVirtConfiguration) {
	spec := &pod.Spec
	if class := config.RuntimeClass(); class != "" {
		spec.RuntimeClassName = ptr.To(class)
	}
	if config.ImagePullPolicy != "" {
		spec.Containers[0].ImagePullPolicy = config.ImagePullPolicy
	}
	if profile := config.LocalhostProfile(); profile != "" {
		spec.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: ptr.To(profile)}
	}
	for key, value := range config.NodeSelectors() {
		if _, ok := spec.NodeSelector[key]; !ok {
			spec.NodeSelector[key] = value
		}
	}
	if d := config.DeveloperConfiguration; d != nil {
		if d.LogVerbosity != nil && d.LogVerbosity.VirtLauncher > 0 {
			spec.Containers[0].Command = append(spec.Containers[0].Command, "--verbosity="+strconv.Itoa(int(d.LogVerbosity.VirtLauncher)))
		}
	}
}
