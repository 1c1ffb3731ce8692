package filler

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const mebibyte = 1 << 20

// claimOf renders the claim of a DataVolume whose spec is valid. Clients look at the labels and
// annotations of a DataVolume on its claim, as CDI copies them.
func claimOf(volume *cdi.DataVolume) *corev1.PersistentVolumeClaim {
	form := volume.Spec.Claim()
	if form.Inflate {
		inflate(form)
	}
	labels := map[string]string{"app": "containerized-data-importer"}
	maps.Copy(labels, copied(volume.Labels))
	labels[cdi.ManagedByLabel] = cdi.ManagedByKubeqemu
	annotations := copied(volume.Annotations)
	delete(annotations, cdi.PopulatedForAnnotation) // this controller says so of a claim
	annotations[cdi.CreatedForAnnotation] = string(volume.UID)
	annotations["cdi.kubevirt.io/storage.contentType"] = string(cdi.ContentKubeVirt)
	forUpload(volume, annotations)
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: volume.Namespace, Name: volume.Name, Labels: labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(volume, cdi.DataVolumeGroupVersionKind)}},
		Spec: form.Spec,
	}
}

// inflate fills in the defaults of the form storage, and makes room for the file system.
func inflate(form *cdi.Claim) {
	spec := &form.Spec
	if len(spec.AccessModes) == 0 {
		spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	if spec.VolumeMode == nil {
		spec.VolumeMode = ptr.To(corev1.PersistentVolumeFilesystem)
	}
	if form.Populated() {
		return // another claim or a snapshot has its own size
	}
	size := requested(spec)
	if size <= 0 {
		return // a copy, whose source has the size
	}
	if *spec.VolumeMode == corev1.PersistentVolumeFilesystem {
		size = withOverhead(size)
	}
	spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(size, resource.BinarySI)
}

// requested is the requested storage in bytes, a multiple of 1 MiB.
func requested(spec *corev1.PersistentVolumeClaimSpec) int64 {
	size := spec.Resources.Requests[corev1.ResourceStorage]
	return roundUp(size.Value())
}

// withOverhead is the size of a file system that has room for a disk: DiskSize of
// v1.PersistentVolumeClaimInfo is its reverse.
func withOverhead(disk int64) int64 { return roundUp(disk/945*1000 + 1000) }

func roundUp(size int64) int64 { return (size + mebibyte - 1) / mebibyte * mebibyte }

// diskBytes is how large a DataVolume's disk becomes on its claim, or 0 if the claim has no room for
// a disk. Before a claim is bound, its request counts for its capacity.
func diskBytes(volume *cdi.DataVolume, claim *corev1.PersistentVolumeClaim) int64 {
	if form := volume.Spec.Claim(); form.Inflate && requested(&form.Spec) > 0 {
		return requested(&form.Spec)
	}
	info := v1.PersistentVolumeClaimInfo{VolumeMode: claim.Spec.VolumeMode, Requests: claim.Spec.Resources.Requests, Capacity: claim.Status.Capacity}
	if !info.IsBound() {
		info.Capacity = info.Requests
	}
	if info.IsBlock() {
		capacity := info.Capacity[corev1.ResourceStorage]
		return capacity.Value()
	}
	return info.DiskSize()
}

// isBlock says whether a claim is a block device.
func isBlock(claim *corev1.PersistentVolumeClaim) bool {
	return ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock
}

// copied are the labels or annotations of a DataVolume that its claim gets. Nobody else may give an
// object the label of launcher pods, and kubectl's annotations describe the DataVolume.
func copied(from map[string]string) map[string]string {
	to := map[string]string{}
	for key, value := range from {
		if key != v1.CreatedByLabel && !strings.HasPrefix(key, "kubectl.kubernetes.io/") {
			to[key] = value
		}
	}
	return to
}
