package v1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func TestDiskSizeInClaim(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		mode              corev1.PersistentVolumeMode
		capacity, request string
		want              int64
	}{
		{corev1.PersistentVolumeFilesystem, "1Gi", "1Gi", 967 * mib}, // 1024 × 0.945 = 967.68
		{corev1.PersistentVolumeFilesystem, "10Gi", "1Gi", 967 * mib},
		{corev1.PersistentVolumeFilesystem, "1Gi", "10Gi", 967 * mib}, // not resized yet
		{corev1.PersistentVolumeFilesystem, "1Gi", "", 967 * mib},
		{corev1.PersistentVolumeFilesystem, "1Mi", "1Mi", 0},
		{corev1.PersistentVolumeFilesystem, "", "1Gi", 0}, // not bound
		{corev1.PersistentVolumeFilesystem, "64Ti", "64Ti", 63417876 * mib},
		{corev1.PersistentVolumeBlock, "1Gi", "1Gi", 1 << 30},
		{corev1.PersistentVolumeBlock, "", "1Gi", 0},
	} {
		info := PersistentVolumeClaimInfo{VolumeMode: ptr.To(tt.mode)}
		list := func(s string) corev1.ResourceList {
			if s == "" {
				return nil
			}
			return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(s)}
		}
		info.Capacity, info.Requests = list(tt.capacity), list(tt.request)
		if got := info.DiskSize(); got != tt.want {
			t.Errorf("%+v: %d bytes (%d MiB), want %d", tt, got, got/mib, tt.want)
		}
	}
}

func TestVolumeClaim(t *testing.T) {
	for _, tt := range []struct {
		volume Volume
		want   *VolumeClaim
	}{
		{Volume{EmptyDisk: &EmptyDiskSource{Capacity: resource.MustParse("1Mi")}}, nil},
		{Volume{PersistentVolumeClaim: &PersistentVolumeClaimVolumeSource{ClaimName: "a"}}, &VolumeClaim{Name: "a"}},
		{Volume{PersistentVolumeClaim: &PersistentVolumeClaimVolumeSource{ClaimName: "a", ReadOnly: true}},
			&VolumeClaim{Name: "a", ReadOnly: true, ReadOnlyVolume: true}},
		{Volume{Ephemeral: &EphemeralVolumeSource{PersistentVolumeClaim: &EphemeralClaim{ClaimName: "a"}}},
			&VolumeClaim{Name: "a", ReadOnly: true, Overlay: true}},
		{Volume{Ephemeral: &EphemeralVolumeSource{PersistentVolumeClaim: &EphemeralClaim{ClaimName: "a", ReadOnly: true}}},
			&VolumeClaim{Name: "a", ReadOnly: true, ReadOnlyVolume: true, Overlay: true}},
		{Volume{Ephemeral: &EphemeralVolumeSource{PersistentVolumeClaim: &EphemeralClaim{ClaimName: "/a"}}},
			&VolumeClaim{Name: "/a", ReadOnly: true, Overlay: true}},
		{Volume{Ephemeral: &EphemeralVolumeSource{}}, nil},
	} {
		if got := tt.volume.Claim(); (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
			t.Errorf("%+v: %+v, want %+v", tt.volume, got, tt.want)
		}
	}
}
