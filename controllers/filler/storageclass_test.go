package filler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubeqemu/kubeqemu/controllers/storageclass"
)

// TestBestModesOfAStorageClassArePreferred: a DataVolume gets what its class is best at, within what it asks for.
func TestBestModesOfAStorageClassArePreferred(t *testing.T) {
	for name, c := range map[string]struct {
		driver     string
		parameters map[string]string
		storage    string
		access     corev1.PersistentVolumeAccessMode
		mode       corev1.PersistentVolumeMode
	}{
		"no class":                   {"", nil, `{}`, corev1.ReadWriteOnce, corev1.PersistentVolumeFilesystem},
		"an unknown driver":          {"rancher.io/local-path", nil, `{}`, corev1.ReadWriteOnce, corev1.PersistentVolumeFilesystem},
		"an unknown driver, asked":   {"rancher.io/local-path", nil, `{accessModes: [ReadWriteMany], volumeMode: Block}`, corev1.ReadWriteMany, corev1.PersistentVolumeBlock},
		"ceph":                       {"rook-ceph.rbd.csi.ceph.com", nil, `{}`, corev1.ReadWriteMany, corev1.PersistentVolumeBlock},
		"ceph, one node":             {"rook-ceph.rbd.csi.ceph.com", nil, `{accessModes: [ReadWriteOnce]}`, corev1.ReadWriteOnce, corev1.PersistentVolumeBlock},
		"ceph, a file system":        {"rook-ceph.rbd.csi.ceph.com", nil, `{volumeMode: Filesystem}`, corev1.ReadWriteOnce, corev1.PersistentVolumeFilesystem},
		"ceph, what it cannot":       {"rook-ceph.rbd.csi.ceph.com", nil, `{accessModes: [ReadWriteMany], volumeMode: Filesystem}`, corev1.ReadWriteMany, corev1.PersistentVolumeFilesystem},
		"nfs":                        {"nfs.csi.k8s.io", nil, `{}`, corev1.ReadWriteMany, corev1.PersistentVolumeFilesystem},
		"longhorn":                   {"driver.longhorn.io", nil, `{}`, corev1.ReadWriteOnce, corev1.PersistentVolumeBlock},
		"longhorn that can migrate":  {"driver.longhorn.io", map[string]string{"migratable": "true"}, `{}`, corev1.ReadWriteMany, corev1.PersistentVolumeBlock},
		"longhorn by NFS":            {"driver.longhorn.io", map[string]string{"nfsOptions": "vers=4"}, `{}`, corev1.ReadWriteMany, corev1.PersistentVolumeFilesystem},
		"longhorn with file systems": {"driver.longhorn.io", map[string]string{"fsType": "ext4"}, `{}`, corev1.ReadWriteOnce, corev1.PersistentVolumeFilesystem},
	} {
		form := volume(t, "{source: {blank: {}}, storage: "+c.storage+"}").Spec.Storage
		var class *storagev1.StorageClass
		if c.driver != "" {
			class = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "class"}, Provisioner: c.driver, Parameters: c.parameters}
		}
		prefer(form, class)
		if len(form.AccessModes) != 1 || form.AccessModes[0] != c.access || ptr.Deref(form.VolumeMode, "") != c.mode || ptr.Deref(form.StorageClassName, "") != map[bool]string{true: "class"}[class != nil] {
			t.Errorf("%s: %+v", name, form)
		}
	}
}

// TestWhichStorageClassADataVolumeHas: the class is the named one, the default one, or none, and the DataVolume itself is not changed.
func TestWhichStorageClassADataVolumeHas(t *testing.T) {
	fast := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "rbd.csi.ceph.com"}
	usual := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "usual", Annotations: map[string]string{storageclass.DefaultAnnotation: "true"}}}
	r := among(t, fast, usual)
	for spec, want := range map[string]string{
		`{source: {blank: {}}, storage: {storageClassName: fast}}`: "fast Block",
		`{source: {blank: {}}, storage: {}}`:                       "usual Filesystem",
		`{source: {blank: {}}, storage: {storageClassName: gone}}`: "gone Filesystem",
		`{source: {blank: {}}, storage: {storageClassName: ""}}`:   " Filesystem",
	} {
		v := volume(t, spec)
		got, err := r.shaped(t.Context(), v)
		if err != nil || *got.Spec.Storage.StorageClassName+" "+string(*got.Spec.Storage.VolumeMode) != want || v.Spec.Storage.VolumeMode != nil {
			t.Errorf("%s: %+v, want %s (%v)", spec, got.Spec.Storage, want, err)
		}
	}
}
