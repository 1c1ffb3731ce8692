package filler

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
)

// Annotations of storage classes. The first is KubeVirt's: the default class of VMs' disks. The last is CDI's.
const (
	defaultVirtClassAnnotation = "storageclass.kubevirt.io/is-default-virt-class"
	defaultClassAnnotation     = "storageclass.kubernetes.io/is-default-class"
	cloneStrategyAnnotation    = "cdi.kubevirt.io/clone-strategy"
	cloneByStorage             = "csi-clone"
)

// capability is a pair of modes that a driver's claims can have.
type capability struct {
	access corev1.PersistentVolumeAccessMode
	volume corev1.PersistentVolumeMode
}

// traits are what is known of a driver.
type traits struct {
	// capabilities, the best for a VM's disk first: a disk that two nodes can have can migrate, and a
	// device has no file system of the node's under the guest's own.
	capabilities []capability
	// clones: the driver copies its own claims, so that no pod need do so.
	clones bool
}

// plain is what every driver can.
var plain = capability{corev1.ReadWriteOnce, corev1.PersistentVolumeFilesystem}

// traitsOf is what a StorageProfile of CDI says of a class' driver, for the drivers of which more is known than plain.
func traitsOf(class *storagev1.StorageClass) traits {
	const file, block = corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock
	shared, sharedFile, device := capability{corev1.ReadWriteMany, block}, capability{corev1.ReadWriteMany, file}, capability{corev1.ReadWriteOnce, block}
	switch class.Provisioner {
	case "rbd.csi.ceph.com", "rook-ceph.rbd.csi.ceph.com", "openshift-storage.rbd.csi.ceph.com", "csi.hpe.com":
		return traits{[]capability{shared, device, plain}, true}
	case "cephfs.csi.ceph.com", "rook-ceph.cephfs.csi.ceph.com", "openshift-storage.cephfs.csi.ceph.com":
		return traits{[]capability{sharedFile, plain}, true}
	case "nfs.csi.k8s.io", "k8s-sigs.io/nfs-subdir-external-provisioner", "efs.csi.aws.com", "file.csi.azure.com", "manila.csi.openstack.org":
		return traits{[]capability{sharedFile, plain}, false}
	case "linstor.csi.linbit.com":
		return traits{[]capability{shared, device, plain}, false}
	case "driver.longhorn.io":
		return traits{longhorn(class.Parameters, shared, sharedFile, device), false}
	case "topolvm.io", "topolvm.cybozu.com", "cinder.csi.openstack.org", "csi.ovirt.org", "ebs.csi.aws.com", "disk.csi.azure.com",
		"pd.csi.storage.gke.io", "csi.vsphere.vmware.com":
		return traits{[]capability{device, plain}, false}
	}
	return traits{capabilities: []capability{plain}}
}

// longhorn is one driver of several kinds of volumes, which the class' parameters tell apart.
func longhorn(parameters map[string]string, shared, sharedFile, device capability) []capability {
	switch {
	case parameters["migratable"] == "true":
		return []capability{shared, device, plain}
	case parameters["nfsOptions"] != "":
		return []capability{sharedFile, plain}
	case parameters["fsType"] != "":
		return []capability{plain}
	}
	return []capability{device, plain}
}

// clones says whether a class' driver copies a claim. The class' annotation has the last word. Without it the driver
// copies devices alone, and at once. In a copied file system the disk is a file, which has the size of the source's. A
// copy that waits for the first pod may find the source in use.
func clones(class *storagev1.StorageClass, claim *corev1.PersistentVolumeClaim) bool {
	if strategy, ok := class.Annotations[cloneStrategyAnnotation]; ok {
		return strategy == cloneByStorage
	}
	return traitsOf(class).clones && isBlock(claim) && !waitsForConsumer(class)
}

// prefer fills in what the form storage leaves to the class. class may be nil.
func prefer(form *cdi.StorageSpec, class *storagev1.StorageClass) {
	known := []capability{plain}
	if class != nil {
		form.StorageClassName = &class.Name
		known = traitsOf(class).capabilities
	}
	fits := slices.IndexFunc(known, func(c capability) bool {
		return (form.VolumeMode == nil || *form.VolumeMode == c.volume) && (len(form.AccessModes) == 0 || slices.Contains(form.AccessModes, c.access))
	})
	best := plain
	if fits >= 0 {
		best = known[fits]
	}
	if form.VolumeMode == nil {
		form.VolumeMode = &best.volume
	}
	if len(form.AccessModes) == 0 {
		form.AccessModes = []corev1.PersistentVolumeAccessMode{best.access}
	}
}

// shaped is a DataVolume whose storage has all that its class decides.
func (r *Reconciler) shaped(ctx context.Context, volume *cdi.DataVolume) (*cdi.DataVolume, error) {
	if volume.Spec.Storage == nil {
		return volume, nil
	}
	class, err := r.classFor(ctx, volume.Spec.Storage.StorageClassName)
	if err != nil {
		return nil, err
	}
	volume = volume.DeepCopy()
	prefer(volume.Spec.Storage, class)
	return volume, nil
}

// classFor is the class of a name, or the default class if there is no name, or nil if there is no such class. The
// name "" is no class.
func (r *Reconciler) classFor(ctx context.Context, name *string) (*storagev1.StorageClass, error) {
	if name != nil {
		return r.class(ctx, *name)
	}
	return r.defaultClass(ctx, defaultVirtClassAnnotation, defaultClassAnnotation)
}

// defaultClass is the class with the first of the annotations that a class has, or nil.
func (r *Reconciler) defaultClass(ctx context.Context, annotations ...string) (*storagev1.StorageClass, error) {
	list := &storagev1.StorageClassList{}
	if err := r.Live.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list StorageClasses: %w", err)
	}
	return defaultClass(list.Items, annotations...), nil
}

// class is the StorageClass of a name, or nil.
func (r *Reconciler) class(ctx context.Context, name string) (*storagev1.StorageClass, error) {
	if name == "" {
		return nil, nil
	}
	class := &storagev1.StorageClass{}
	switch err := r.Live.Get(ctx, client.ObjectKey{Name: name}, class); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get StorageClass %s: %w", name, err)
	}
	return class, nil
}

// defaultClass is the class with the first of the annotations that a class has. Of several classes the newest wins,
// and of those the first by name, as in the API server.
func defaultClass(classes []storagev1.StorageClass, annotations ...string) *storagev1.StorageClass {
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

// waitsForConsumer says whether a class binds a claim when a pod uses it.
func waitsForConsumer(class *storagev1.StorageClass) bool {
	return class != nil && ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer
}
