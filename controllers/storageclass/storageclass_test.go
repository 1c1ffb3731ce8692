package storageclass

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestDefaultOfVMsComesBeforeTheClusters: the default of VMs' disks comes before the cluster's, and of several the newest.
func TestDefaultOfVMsComesBeforeTheClusters(t *testing.T) {
	class := func(name string, age int, annotation string) storagev1.StorageClass {
		return storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotation: "true"},
			CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-time.Duration(age) * time.Hour))}}
	}
	for want, classes := range map[string][]storagev1.StorageClass{
		"":     {class("a", 1, "x")},
		"b":    {class("a", 1, "x"), class("b", 1, DefaultAnnotation)},
		"new":  {class("old", 2, DefaultAnnotation), class("new", 1, DefaultAnnotation)},
		"virt": {class("new", 1, DefaultAnnotation), class("virt", 9, DefaultVirtAnnotation)},
		"c":    {class("d", 1, DefaultAnnotation), class("c", 1, DefaultAnnotation)},
	} {
		got := ""
		if found := Default(classes, DefaultVirtAnnotation, DefaultAnnotation); found != nil {
			got = found.Name
		}
		if got != want {
			t.Errorf("the default is %q, want %q", got, want)
		}
	}
}

// TestOnlySharingDriversGetSeveralNodes: several nodes get a file system only of a driver that shares file systems.
func TestOnlySharingDriversGetSeveralNodes(t *testing.T) {
	for driver, want := range map[string]corev1.PersistentVolumeAccessMode{
		"nfs.csi.k8s.io": corev1.ReadWriteMany, "cephfs.csi.ceph.com": corev1.ReadWriteMany,
		"rbd.csi.ceph.com": corev1.ReadWriteOnce, "rancher.io/local-path": corev1.ReadWriteOnce,
	} {
		if got := AccessMode(&storagev1.StorageClass{Provisioner: driver}, corev1.PersistentVolumeFilesystem); got != want {
			t.Errorf("%s: %s, want %s", driver, got, want)
		}
	}
}

// TestAnnotationNamesTheClassOfAClaimBeforeTheField, as in the API server.
func TestAnnotationNamesTheClassOfAClaimBeforeTheField(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("field")}}
	if got := OfClaim(claim); *got != "field" {
		t.Errorf("the class is %q", *got)
	}
	claim.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "annotation"}
	if got := OfClaim(claim); *got != "annotation" {
		t.Errorf("the class is %q", *got)
	}
}

// TestLacks: a claim lacks a class that does not exist, or a default if it names none, until it has a volume.
func TestLacks(t *testing.T) {
	there := storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "there"}}
	standard := storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "standard", Annotations: map[string]string{DefaultAnnotation: "true"}}}
	for name, c := range map[string]struct {
		spec    corev1.PersistentVolumeClaimSpec
		phase   corev1.PersistentVolumeClaimPhase
		classes []storagev1.StorageClass
		want    string
	}{
		"there":      {corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("there")}, corev1.ClaimPending, []storagev1.StorageClass{there}, ""},
		"missing":    {corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("none")}, corev1.ClaimPending, []storagev1.StorageClass{there, standard}, "PVC disk names the StorageClass none, which does not exist"},
		"bound":      {corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("none")}, corev1.ClaimBound, nil, ""},
		"volume":     {corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("none"), VolumeName: "pv"}, corev1.ClaimPending, nil, ""},
		"no class":   {corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("")}, corev1.ClaimPending, nil, ""},
		"default":    {corev1.PersistentVolumeClaimSpec{}, corev1.ClaimPending, []storagev1.StorageClass{there, standard}, ""},
		"no default": {corev1.PersistentVolumeClaimSpec{}, "", []storagev1.StorageClass{there}, "PVC disk names no StorageClass, and no StorageClass is the cluster's default"},
	} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: c.spec, Status: corev1.PersistentVolumeClaimStatus{Phase: c.phase}}
		if got := Lacks(claim, c.classes); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
