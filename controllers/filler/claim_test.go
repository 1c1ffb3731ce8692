package filler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// volume is a DataVolume of the spec, which is YAML.
func volume(t *testing.T, spec string) *cdi.DataVolume {
	t.Helper()
	v := &cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "uid-of-data"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &v.Spec); err != nil {
		t.Fatal(err)
	}
	return v
}

const blank = `{source: {blank: {}}, storage: {resources: {requests: {storage: 1Gi}}}}`

// bound is the DataVolume's claim, bound to a volume of the capacity.
func bound(v *cdi.DataVolume, capacity string) *corev1.PersistentVolumeClaim {
	claim := claimOf(v)
	claim.UID, claim.ResourceVersion = "uid-of-claim", "7"
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(capacity)}}
	return claim
}

func TestSizesOfClaimAndDisk(t *testing.T) {
	const gi = 1 << 30
	for _, c := range []struct {
		spec, capacity string
		request, disk  int64
	}{
		{"storage: {resources: {requests: {storage: 1Gi}}}", "10Gi", 1084 * mebibyte, gi},
		{"storage: {resources: {requests: {storage: 1Gi}}, volumeMode: Block}", "10Gi", gi, gi},
		{"storage: {resources: {requests: {storage: 1}}}", "10Gi", 2 * mebibyte, mebibyte},
		{"storage: {resources: {requests: {storage: 1Ei}}}", "2Ei", 0, 1 << 60},
		{"pvc: {resources: {requests: {storage: 1Gi}}}", "10Gi", gi, 967 * mebibyte},
		{"pvc: {resources: {requests: {storage: 1Gi}}, volumeMode: Block}", "10Gi", gi, 10 * gi},
		{"pvc: {resources: {requests: {storage: 1Mi}}}", "1Mi", mebibyte, 0},
	} {
		v := volume(t, c.spec)
		claim := bound(v, c.capacity)
		request := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		if got := diskBytes(v, claim); got != c.disk || c.request != 0 && request.Value() != c.request {
			t.Errorf("%s: the claim asks for %d and the disk has %d bytes, want %d and %d", c.spec, request.Value(), got, c.request, c.disk)
		}
		unbound := claimOf(v)
		if got := diskBytes(v, unbound); got < 0 || got > c.disk {
			t.Errorf("%s: before it is bound the disk has %d bytes, of %d", c.spec, got, c.disk)
		}
	}
}

// TestClaimHasRoomForItsDisk: a disk of any size has room in the claim that is made for it, and hardly more.
func TestClaimHasRoomForItsDisk(t *testing.T) {
	for disk := int64(mebibyte); disk < 1<<60; disk = disk*3 + mebibyte {
		size := withOverhead(disk)
		of := corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}
		usable := (&v1.PersistentVolumeClaimInfo{Requests: of, Capacity: of}).DiskSize()
		if usable < disk || usable > disk+2*mebibyte || size%mebibyte != 0 {
			t.Errorf("a claim of %d bytes has room for %d, want %d", size, usable, disk)
		}
	}
}

func TestClaimOfADataVolume(t *testing.T) {
	v := volume(t, blank)
	v.Labels = map[string]string{"mine": "yes", v1.CreatedByLabel: "forged", cdi.ManagedByLabel: "helm"}
	v.Annotations = map[string]string{"note": "x", "kubectl.kubernetes.io/last-applied-configuration": "{}", cdi.PopulatedForAnnotation: "data"}
	claim := claimOf(v)
	if claim.Name != "data" || !owns(v, claim) || claim.Labels["mine"] != "yes" || claim.Labels[cdi.ManagedByLabel] != cdi.ManagedByKubeqemu || claim.Annotations["note"] != "x" {
		t.Errorf("%+v", claim.ObjectMeta)
	}
	for _, key := range []string{v1.CreatedByLabel, "kubectl.kubernetes.io/last-applied-configuration", cdi.PopulatedForAnnotation} {
		if claim.Labels[key]+claim.Annotations[key] != "" {
			t.Errorf("the claim has %s", key)
		}
	}
	if s := claim.Spec; len(s.AccessModes) != 1 || s.AccessModes[0] != corev1.ReadWriteOnce || ptr.Deref(s.VolumeMode, "") != corev1.PersistentVolumeFilesystem || s.StorageClassName != nil {
		t.Errorf("%+v", s)
	}
	if v.Spec.Storage.AccessModes != nil || v.Spec.Storage.Resources.Requests.Storage().Value() != 1<<30 {
		t.Error("the DataVolume was changed")
	}
	given := volume(t, `{source: {blank: {}}, pvc: {accessModes: [ReadWriteMany], storageClassName: fast, volumeMode: Block, resources: {requests: {storage: 3Gi}}}}`)
	if s := claimOf(given).Spec; s.AccessModes[0] != corev1.ReadWriteMany || *s.StorageClassName != "fast" || *s.VolumeMode != corev1.PersistentVolumeBlock || s.Resources.Requests.Storage().String() != "3Gi" {
		t.Errorf("%+v", s)
	}
}
