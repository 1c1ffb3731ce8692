package vmi

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// tokenSeconds is the life of a service account's token. An API server gives a token that was asked for with
// exactly this life a year, unless it is told otherwise (--service-account-extend-token-expiration), and the
// disk is never written again.
const tokenSeconds = 3607

// addConfigVolumes mounts the volumes of which the launcher makes disks, and those whose files the guest shares.
func addConfigVolumes(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) {
	for i := range vmi.Spec.Volumes {
		if v := &vmi.Spec.Volumes[i]; v.IsConfig() {
			c, at := holder(pod, v.Name, layout.Config(v.Name))
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: configName(v), VolumeSource: configSource(v)})
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: configName(v), MountPath: at, ReadOnly: true})
		}
	}
}

// configSource returns the volume of the pod that holds the files of a config volume.
func configSource(v *v1.Volume) corev1.VolumeSource {
	switch {
	case v.ConfigMap != nil:
		return ofConfigMap(v.ConfigMap.Name, v.ConfigMap.Optional)
	case v.Secret != nil:
		return ofSecret(v.Secret.SecretName, v.Secret.Optional)
	case v.DownwardAPI != nil:
		return corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: files(v.DownwardAPI.Fields)}}
	case v.ServiceAccount != nil:
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: credentials()}}
	case v.Sysprep != nil && v.Sysprep.Secret != nil:
		return ofSecret(v.Sysprep.Secret.Name, nil)
	case v.Sysprep != nil && v.Sysprep.ConfigMap != nil:
		return ofConfigMap(v.Sysprep.ConfigMap.Name, nil)
	}
	return corev1.VolumeSource{}
}

// leaveFilesOut gives the pod none of the ConfigMaps, Secrets and tokens of which disks were made. The guest
// brings along the disks that were made of them, and nothing in the pod reads the files. The launcher copies
// ACPI tables anew.
func leaveFilesOut(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) {
	left := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		if v := &vmi.Spec.Volumes[i]; vmi.Spec.IsConfigDisk(v) && !vmi.Spec.IsACPITable(v.Name) {
			left[configName(v)] = true
		}
	}
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return left[v.Name] })
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return left[m.Name] })
	}
}

// configName returns the name that a config volume has in the pod.
func configName(v *v1.Volume) string { return layout.PodName("config", v.Name) }

func ofConfigMap(name string, optional *bool) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: optional}}
}

func ofSecret(name string, optional *bool) corev1.VolumeSource {
	return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, Optional: optional}}
}

// files returns the files of the downward API without their modes. The disk has modes of its own, and the
// launcher must be able to read the files.
func files(fields []corev1.DownwardAPIVolumeFile) []corev1.DownwardAPIVolumeFile {
	var out []corev1.DownwardAPIVolumeFile
	for _, f := range fields {
		f = *f.DeepCopy()
		f.Mode = nil
		out = append(out, f)
	}
	return out
}

// credentials returns what a pod with the service account's token finds below /var/run/secrets/kubernetes.io.
// The launcher's container has it only as files for the disk.
func credentials() []corev1.VolumeProjection {
	return []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: corev1.ServiceAccountTokenKey,
			ExpirationSeconds: ptr.To[int64](tokenSeconds)}},
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
			Items: []corev1.KeyToPath{{Key: corev1.ServiceAccountRootCAKey, Path: corev1.ServiceAccountRootCAKey}}}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
			{Path: corev1.ServiceAccountNamespaceKey,
				FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}}}},
	}
}
