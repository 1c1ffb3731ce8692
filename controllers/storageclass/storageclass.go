// Package storageclass says what is known of storage classes: what their drivers can, and which class is the default. It is pure.
package storageclass

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Annotations of default classes. The first is KubeVirt's: the default class of VMs' disks.
const (
	DefaultVirtAnnotation = "storageclass.kubevirt.io/is-default-virt-class"
	DefaultAnnotation     = "storageclass.kubernetes.io/is-default-class"
)

// Capability is a pair of modes that a driver's claims can have.
type Capability struct {
	Access corev1.PersistentVolumeAccessMode
	Volume corev1.PersistentVolumeMode
}

// Traits are what is known of a driver.
type Traits struct {
	// Capabilities, the best for a VM's disk first: a disk that two nodes can have can migrate, and a
	// device has no file system of the node's under the guest's own.
	Capabilities []Capability
	// Clones: the driver copies its own claims, so that no pod need do so.
	Clones bool
}

// Plain is what every driver can.
func Plain() Capability { return Capability{corev1.ReadWriteOnce, corev1.PersistentVolumeFilesystem} }

// Of is what a StorageProfile of CDI says of a class' driver, for the drivers of which more is known than Plain.
func Of(class *storagev1.StorageClass) Traits {
	plain := Plain()
	const file, block = corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock
	shared, sharedFile, device := Capability{corev1.ReadWriteMany, block}, Capability{corev1.ReadWriteMany, file}, Capability{corev1.ReadWriteOnce, block}
	switch class.Provisioner {
	case "rbd.csi.ceph.com", "rook-ceph.rbd.csi.ceph.com", "openshift-storage.rbd.csi.ceph.com", "csi.hpe.com":
		return Traits{[]Capability{shared, device, plain}, true}
	case "cephfs.csi.ceph.com", "rook-ceph.cephfs.csi.ceph.com", "openshift-storage.cephfs.csi.ceph.com":
		return Traits{[]Capability{sharedFile, plain}, true}
	case "nfs.csi.k8s.io", "k8s-sigs.io/nfs-subdir-external-provisioner", "efs.csi.aws.com", "file.csi.azure.com", "manila.csi.openstack.org":
		return Traits{[]Capability{sharedFile, plain}, false}
	case "linstor.csi.linbit.com":
		return Traits{[]Capability{shared, device, plain}, false}
	case "driver.longhorn.io":
		return Traits{longhorn(class.Parameters, shared, sharedFile, device), false}
	case "topolvm.io", "topolvm.cybozu.com", "cinder.csi.openstack.org", "csi.ovirt.org", "ebs.csi.aws.com", "disk.csi.azure.com",
		"pd.csi.storage.gke.io", "csi.vsphere.vmware.com":
		return Traits{[]Capability{device, plain}, false}
	}
	return Traits{Capabilities: []Capability{plain}}
}

// longhorn is one driver of several kinds of volumes, which the class' parameters tell apart.
func longhorn(parameters map[string]string, shared, sharedFile, device Capability) []Capability {
	plain := Plain()
	switch {
	case parameters["migratable"] == "true":
		return []Capability{shared, device, plain}
	case parameters["nfsOptions"] != "":
		return []Capability{sharedFile, plain}
	case parameters["fsType"] != "":
		return []Capability{plain}
	}
	return []Capability{device, plain}
}

// Default is the class with the first of the annotations that a class has. Of several classes the newest wins,
// and of those the first by name, as in the API server.
func Default(classes []storagev1.StorageClass, annotations ...string) *storagev1.StorageClass {
	for _, annotation := range annotations {
		var found []*storagev1.StorageClass
		for i := range classes {
			if classes[i].Annotations[annotation] == "true" {
				found = append(found, &classes[i])
			}
		}
		if len(found) > 0 {
			return slices.MinFunc(found, func(a, b *storagev1.StorageClass) int {
				return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
			})
		}
	}
	return nil
}

// AccessMode is the access mode of a claim of the class and a volume mode: ReadWriteMany if the class' driver is known to give such
// volumes to several nodes.
func AccessMode(class *storagev1.StorageClass, mode corev1.PersistentVolumeMode) corev1.PersistentVolumeAccessMode {
	if slices.Contains(Of(class).Capabilities, Capability{corev1.ReadWriteMany, mode}) {
		return corev1.ReadWriteMany
	}
	return corev1.ReadWriteOnce
}

// OfClaim returns the name of the class that a claim wants: empty for a volume without a class, and nil if the claim names none yet. The
// annotation of Kubernetes' beta counts before the field, as in the API server.
func OfClaim(claim *corev1.PersistentVolumeClaim) *string {
	if old, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return &old
	}
	return claim.Spec.StorageClassName
}

// Lacks returns what keeps a claim from getting a new volume, in words: its class does not exist, or it names none and no class is the default. It is
// empty for a claim that is bound or has a volume's name, and for one that wants a volume without a class. A volume that names such a class can
// still be bound to the claim.
func Lacks(claim *corev1.PersistentVolumeClaim, classes []storagev1.StorageClass) string {
	name := OfClaim(claim)
	switch {
	case claim.Status.Phase == corev1.ClaimBound, claim.Spec.VolumeName != "", name != nil && *name == "":
		return ""
	case name == nil && Default(classes, DefaultAnnotation) == nil:
		return fmt.Sprintf("PVC %s names no StorageClass, and no StorageClass is the cluster's default", claim.Name)
	case name != nil && !slices.ContainsFunc(classes, func(c storagev1.StorageClass) bool { return c.Name == *name }):
		return fmt.Sprintf("PVC %s names the StorageClass %s, which does not exist", claim.Name, *name)
	}
	return ""
}
