package v1

import (
	"maps"
	"slices"
	"strings"
)

// This file says which labels and annotations of a user's reach neither a VirtualMachineInstance by way of a template
// nor a launcher pod.

// ReservedLabel reports whether components alone write a label of a VirtualMachineInstance and of its launcher pod. By
// these labels a pod counts as a migration's target, and programs find the guests of a node. The policy
// kubevirt-vmi-update refuses them in a user's VirtualMachineInstance.
func ReservedLabel(key string) bool {
	return ObservedLabel(key) ||
		slices.Contains([]string{CreatedByLabel, MigrationJobLabel, "kubevirt.io/migrationTargetNodeName", SchedulableLabel,
			"kubevirt.io/install-strategy"}, key)
}

// ReservedAnnotation returns who obeys an annotation of a pod, or an empty string if users may give it to a launcher
// pod. The right to create a VirtualMachineInstance is no right to a pod with other confinement, devices, mounts or
// network cards than virt-controller gives it.
func ReservedAnnotation(key string) (by string) {
	domain, name, _ := strings.Cut(key, "/")
	for _, r := range reservedDomains() {
		if r.domain == domain || strings.HasSuffix(domain, "."+r.domain) {
			return r.by
		}
	}
	switch {
	case strings.HasPrefix(key, "io.kubernetes.cri-o."):
		return "CRI-O"
	case strings.HasPrefix(key, "io.kubernetes.cri."), strings.HasPrefix(key, "io.containerd."):
		return "containerd"
	case strings.HasPrefix(key, "io.katacontainers."):
		return "Kata Containers"
	case strings.HasPrefix(key, "dev.gvisor."):
		return "gVisor"
	case strings.HasPrefix(key, "run.oci."), strings.HasPrefix(key, "org.criu."),
		strings.HasPrefix(key, "org.systemd.property."):
		return "the OCI runtime"
	case domain == "kubernetes.io" && strings.HasPrefix(name, "config."):
		return "the kubelet"
	case key == MigrationJobNameAnnotation:
		return "virt-controller"
	}
	return ""
}

// reservedDomain is a domain, with those below it, all of whose annotations one program obeys or writes.
type reservedDomain struct{ domain, by string }

func reservedDomains() []reservedDomain {
	return []reservedDomain{
		{"apparmor.security.beta.kubernetes.io", "the kubelet (AppArmor)"},
		{"seccomp.security.alpha.kubernetes.io", "the kubelet (seccomp)"},
		{"security.alpha.kubernetes.io", "the kubelet (sysctls)"},
		{"resources.beta.kubernetes.io", "the container runtime"}, // blockio and rdt: how fast disks are, and how much cache
		{"cri-o.io", "CRI-O"}, // such as seccomp-profile.kubernetes.cri-o.io
		{"cdi.k8s.io", "the container runtime (devices)"},
		{"nri.io", "plugins of the container runtime"}, // such as devices.nri.io
		{"cni.cncf.io", "Multus"},
		{"multus-cni.io", "Multus"},
		{"kubectl.kubernetes.io", "kubectl"},
	}
}

// WithoutReservedLabels returns a copy of labels without those that are reserved. It is nil if labels is.
func WithoutReservedLabels(labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return ReservedLabel(key) })
	return labels
}

// WithoutReservedAnnotations returns a copy of annotations without those that are reserved. It is nil if annotations
// is.
func WithoutReservedAnnotations(annotations map[string]string) map[string]string {
	annotations = maps.Clone(annotations)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return ReservedAnnotation(key) != "" })
	return annotations
}
