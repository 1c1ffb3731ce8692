package v1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
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

func TestValidateClaim(t *testing.T) {
	claim := func(source PersistentVolumeClaimVolumeSource, disk Disk) func(*spec) {
		return func(s *spec) {
			s.Volumes[2] = Volume{Name: "seed", PersistentVolumeClaim: &source}
			disk.Name = "seed"
			s.Domain.Devices.Disks[2] = disk
			defaultDisks(s)
		}
	}
	edits{
		"a claim":               {claim(PersistentVolumeClaimVolumeSource{ClaimName: "data.1"}, Disk{}), ""},
		"no name":               {claim(PersistentVolumeClaimVolumeSource{}, Disk{}), ".claimName"},
		"a path":                {claim(PersistentVolumeClaimVolumeSource{ClaimName: "../data"}, Disk{}), ".claimName"},
		"hotpluggable":          {claim(PersistentVolumeClaimVolumeSource{ClaimName: "data", Hotpluggable: true}, Disk{}), ".hotpluggable"},
		"read-only as a CD-ROM": {claim(PersistentVolumeClaimVolumeSource{ClaimName: "data", ReadOnly: true}, Disk{CDRom: &CDRomTarget{}}), ""},
		"read-only on SATA":     {claim(PersistentVolumeClaimVolumeSource{ClaimName: "data", ReadOnly: true}, Disk{}), "spec.domain.devices.disks[2].disk.bus"},
	}.try(t, "spec.volumes[2].persistentVolumeClaim")
}

func TestVolumeClaim(t *testing.T) {
	for _, tt := range []struct {
		volume Volume
		want   *VolumeClaim
		errs   int
	}{
		{Volume{EmptyDisk: &EmptyDiskSource{Capacity: resource.MustParse("1Mi")}}, nil, 0},
		{Volume{PersistentVolumeClaim: &PersistentVolumeClaimVolumeSource{ClaimName: "a"}}, &VolumeClaim{Name: "a"}, 0},
		{Volume{PersistentVolumeClaim: &PersistentVolumeClaimVolumeSource{ClaimName: "a", ReadOnly: true}}, &VolumeClaim{Name: "a", ReadOnly: true, ReadOnlyVolume: true}, 0},
		{Volume{Ephemeral: &EphemeralVolumeSource{PersistentVolumeClaim: &EphemeralClaim{ClaimName: "a"}}}, &VolumeClaim{Name: "a", ReadOnly: true, Overlay: true}, 0},
		{Volume{Ephemeral: &EphemeralVolumeSource{PersistentVolumeClaim: &EphemeralClaim{ClaimName: "a", ReadOnly: true}}},
			&VolumeClaim{Name: "a", ReadOnly: true, ReadOnlyVolume: true, Overlay: true}, 0},
		{Volume{Ephemeral: &EphemeralVolumeSource{PersistentVolumeClaim: &EphemeralClaim{ClaimName: "/a"}}}, &VolumeClaim{Name: "/a", ReadOnly: true, Overlay: true}, 1},
		{Volume{Ephemeral: &EphemeralVolumeSource{}}, nil, 1},
	} {
		if got := tt.volume.Claim(); (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
			t.Errorf("%+v: %+v, want %+v", tt.volume, got, tt.want)
		}
		if errs := validateSource(tt.volume, field.NewPath("v")); len(errs) != tt.errs {
			t.Errorf("%+v: %v", tt.volume, errs)
		}
	}
}
