package vmi

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// socketSidecar is a container beside the launcher's, with a program to which QEMU is connected by a socket.
type socketSidecar struct {
	name      string
	command   []string
	resources corev1.ResourceRequirements
	// volume is the name of the folder in memory that holds the socket, and size its limit in bytes.
	volume string
	size   int64
	// at is the path of the folder in the launcher's container, and own that in the sidecar's.
	at, own string
	// seccomp is nil for the pod's own profile.
	seccomp *corev1.SeccompProfile
}

// addSidecar adds a sidecar to the pod. The kubelet starts the sidecar before the launcher, and ends it after
// the launcher.
func addSidecar(pod *corev1.Pod, s socketSidecar) {
	launcher := &pod.Spec.Containers[0]
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		corev1.Volume{Name: s.volume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory, SizeLimit: resource.NewQuantity(s.size, resource.BinarySI)}}})
	// The launcher connects to the socket, and writes nothing to its folder.
	launcher.VolumeMounts = append(launcher.VolumeMounts,
		corev1.VolumeMount{Name: s.volume, MountPath: s.at, ReadOnly: true})
	security := launcher.SecurityContext.DeepCopy()
	security.SeccompProfile = s.seccomp
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{
		Name:            s.name,
		Image:           launcher.Image,
		ImagePullPolicy: launcher.ImagePullPolicy,
		RestartPolicy:   ptr.To(corev1.ContainerRestartPolicyAlways),
		Command:         s.command,
		Env:             []corev1.EnvVar{launcherProcs()},
		Resources:       s.resources,
		SecurityContext: security,
		VolumeMounts:    []corev1.VolumeMount{{Name: s.volume, MountPath: s.own}},
	})
}
