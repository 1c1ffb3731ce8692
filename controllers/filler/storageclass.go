package filler

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/controllers/storageclass"
)

// cloneStrategyAnnotation is CDI's annotation of a storage class.
const (
	cloneStrategyAnnotation = "cdi.kubevirt.io/clone-strategy"
	cloneByStorage          = "csi-clone"
)

// clones says whether a class' driver copies a claim. The class' annotation has the last word. Without it the driver
// copies devices alone, and at once. In a copied file system the disk is a file, which has the size of the source's. A
// copy that waits for the first pod may find the source in use.
func clones(class *storagev1.StorageClass, claim *corev1.PersistentVolumeClaim) bool {
	if strategy, ok := class.Annotations[cloneStrategyAnnotation]; ok {
		return strategy == cloneByStorage
	}
	return storageclass.Of(class).Clones && isBlock(claim) && !waitsForConsumer(class)
}

// prefer fills in what the form storage leaves to the class. class may be nil.
func prefer(form *cdi.StorageSpec, class *storagev1.StorageClass) {
	known := []storageclass.Capability{storageclass.Plain()}
	if class != nil {
		form.StorageClassName = &class.Name
		known = storageclass.Of(class).Capabilities
	}
	fits := slices.IndexFunc(known, func(c storageclass.Capability) bool {
		return (form.VolumeMode == nil || *form.VolumeMode == c.Volume) && (len(form.AccessModes) == 0 || slices.Contains(form.AccessModes, c.Access))
	})
	best := storageclass.Plain()
	if fits >= 0 {
		best = known[fits]
	}
	if form.VolumeMode == nil {
		form.VolumeMode = &best.Volume
	}
	if len(form.AccessModes) == 0 {
		form.AccessModes = []corev1.PersistentVolumeAccessMode{best.Access}
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
	return r.defaultClass(ctx, storageclass.DefaultVirtAnnotation, storageclass.DefaultAnnotation)
}

// defaultClass is the class with the first of the annotations that a class has, or nil.
func (r *Reconciler) defaultClass(ctx context.Context, annotations ...string) (*storagev1.StorageClass, error) {
	list := &storagev1.StorageClassList{}
	if err := r.Live.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list StorageClasses: %w", err)
	}
	return storageclass.Default(list.Items, annotations...), nil
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

// waitsForConsumer says whether a class binds a claim when a pod uses it.
func waitsForConsumer(class *storagev1.StorageClass) bool {
	return class != nil && ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer
}
