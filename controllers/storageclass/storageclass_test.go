package storageclass

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
