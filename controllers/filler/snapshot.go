package filler

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
	"github.com/kubeqemu/kubeqemu/controllers/storageclass"
)

const (
	snapshotKind        = "VolumeSnapshot"
	snapshotContentKind = "VolumeSnapshotContent"
)

// snapshotVersion is of the kinds of CSI's snapshots. A cluster may lack them.
var snapshotVersion = schema.GroupVersion{Group: "snapshot.storage.k8s.io", Version: "v1"}

// snapshot is what is known of a VolumeSnapshot that a DataVolume is restored from.
type snapshot struct {
	// driver took the snapshot, and no other one restores it.
	driver string
	// mode of the claim that the snapshot is of, or nil if nobody says.
	mode *corev1.PersistentVolumeMode
	// size that a claim of the snapshot has at least, or 0 if the driver does not say.
	size int64
	// class of the claim that is made.
	class string
}

// volumeSnapshot is a VolumeSnapshot, as far as it is read.
type volumeSnapshot struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Status   struct {
		Content string `json:"boundVolumeSnapshotContentName"`
		Ready   bool   `json:"readyToUse"`
		// Size is a quantity: a text or a number.
		Size  any `json:"restoreSize"`
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	} `json:"status"`
}

// volumeSnapshotContent is the cluster's side of a VolumeSnapshot, as far as it is read.
type volumeSnapshotContent struct {
	Spec struct {
		Driver string                      `json:"driver"`
		Mode   corev1.PersistentVolumeMode `json:"sourceVolumeMode"`
		Ref    corev1.ObjectReference      `json:"volumeSnapshotRef"`
	} `json:"spec"`
}

// snapshotAt reads an object of CSI's snapshots. found is false if there is none, and kind if the cluster lacks the kind.
func (r *Reconciler) snapshotAt(ctx context.Context, of string, key client.ObjectKey, into any) (found, kind bool, err error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(snapshotVersion.WithKind(of))
	switch err = r.Live.Get(ctx, key, object); {
	case meta.IsNoMatchError(err):
		return false, false, nil
	case apierrors.IsNotFound(err):
		return false, true, nil
	case err != nil:
		return false, true, fmt.Errorf("get %s %s: %w", of, key.Name, err)
	}
	if err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into); err != nil {
		return false, true, fmt.Errorf("read %s %s: %w", of, key.Name, err)
	}
	return true, true, nil
}

// restores looks at the VolumeSnapshot that a DataVolume's claim is to be made from.
func (r *Reconciler) restores(ctx context.Context, w world, o *origin) (err error) {
	if w.claim != nil {
		if w.claim.Spec.DataSource == nil { // the DataSource led to a claim when this was made
			o.trouble = invalidCopy("PVC %s was made for another source than VolumeSnapshot %s: delete the DataVolume, and make it again", w.claim.Name, o.at)
		}
		return nil
	}
	if o.at.Namespace != w.volume.Namespace {
		o.trouble = invalidCopy("VolumeSnapshot %s cannot be restored into the DataVolume: it is in another namespace: "+elsewhere, o.at, o.at.Namespace)
		return nil
	}
	if o.trouble, err = r.readSnapshot(ctx, o); err != nil || o.trouble.reason != "" {
		return err
	}
	volume, err := r.shaped(ctx, o.inMode(w.volume))
	if err != nil {
		return err
	}
	class, err := r.classOf(ctx, volume)
	if err != nil {
		return err
	}
	if class != nil {
		o.snapshot.class = class.Name
	}
	if why := o.unfit(w.volume, volume.Spec.Claim().Spec, class); why != "" {
		o.trouble = invalidCopy("VolumeSnapshot %s cannot be restored into the DataVolume: %s", o.at, why)
	}
	return nil
}

// elsewhere is what to do with a snapshot that cannot be restored into a DataVolume, in the snapshot's namespace.
const elsewhere = "restore the snapshot to a claim of namespace %s, and copy that claim with source.pvc"

// invalidCopy is the notice of a copy that cannot be.
func invalidCopy(format string, args ...any) notice {
	return notice{corev1.EventTypeWarning, reasonCloneInvalid, datavolume.Short(fmt.Sprintf(format, args...))}
}

// readSnapshot reads a VolumeSnapshot and its content, or says why it cannot be restored now.
func (r *Reconciler) readSnapshot(ctx context.Context, o *origin) (notice, error) {
	var of volumeSnapshot
	var content volumeSnapshotContent
	found, kind, err := r.snapshotAt(ctx, snapshotKind, o.at, &of)
	if err != nil {
		return notice{}, err
	}
	bound := of.Status.Content != "" && of.Status.Ready
	contained := false
	if bound && of.Metadata.DeletionTimestamp == nil {
		if contained, _, err = r.snapshotAt(ctx, snapshotContentKind, client.ObjectKey{Name: of.Status.Content}, &content); err != nil {
			return notice{}, err
		}
	}
	ref := content.Spec.Ref
	switch {
	case !kind:
		return notice{corev1.EventTypeWarning, reasonCloneWithoutSource, fmt.Sprintf("The cluster has no VolumeSnapshots: the CustomResourceDefinitions of %s are missing", snapshotVersion)}, nil
	case !found:
		return notice{corev1.EventTypeWarning, reasonCloneWithoutSource, fmt.Sprintf("The source snapshot %s doesn't exist", o.at)}, nil
	case of.Metadata.DeletionTimestamp != nil:
		return notice{corev1.EventTypeWarning, reasonCloneWithoutSource, fmt.Sprintf("The source snapshot %s is being deleted", o.at)}, nil
	case !bound || !contained:
		why := strings.TrimSuffix(fmt.Sprintf("The source snapshot %s is not ready to use: %s", o.at, of.Status.Error.Message), ": ")
		return notice{corev1.EventTypeWarning, reasonSnapshotNotReady, datavolume.Short(why)}, nil
	case ref.Namespace != o.at.Namespace || ref.Name != o.at.Name || ref.UID != of.Metadata.UID:
		return notice{corev1.EventTypeWarning, reasonSnapshotNotReady, fmt.Sprintf("The source snapshot %s is not ready to use: its content is another snapshot's", o.at)}, nil
	}
	o.snapshot.driver = content.Spec.Driver
	if mode := content.Spec.Mode; mode == corev1.PersistentVolumeBlock || mode == corev1.PersistentVolumeFilesystem {
		o.snapshot.mode = &mode
	}
	if of.Status.Size == nil {
		return notice{}, nil
	}
	size, err := parseBytes(fmt.Sprint(of.Status.Size))
	if err != nil {
		return invalidCopy("VolumeSnapshot %s has a restoreSize that cannot be: %v", o.at, err), nil
	}
	o.snapshot.size = size
	return notice{}, nil
}

// unfit says why the storage does not restore the snapshot into the claim of a DataVolume, or nothing. form is the
// claim with the defaults of its class.
func (o *origin) unfit(volume *cdi.DataVolume, form corev1.PersistentVolumeClaimSpec, class *storagev1.StorageClass) string {
	target := corev1.PersistentVolumeFilesystem
	if isBlock(&corev1.PersistentVolumeClaim{Spec: form}) {
		target = corev1.PersistentVolumeBlock
	}
	s, named := o.snapshot, volume.Spec.Claim().Spec.VolumeMode != nil
	_, sized := form.Resources.Requests[corev1.ResourceStorage]
	switch {
	case class == nil:
		return fmt.Sprintf("name a storage class of the driver %s", s.driver)
	case class.Provisioner != s.driver:
		return fmt.Sprintf("it is the driver %s's, and storage class %s is %s's: name another class, or "+elsewhere, s.driver, class.Name, class.Provisioner, o.at.Namespace)
	case s.mode == nil && !named:
		return "its content does not say of which volume mode it is: set the DataVolume's volumeMode to that of the claim that the snapshot is of"
	case s.mode != nil && *s.mode != target:
		return fmt.Sprintf("it is of volume mode %s, and the DataVolume is of %s: leave out volumeMode, or "+elsewhere, *s.mode, target, o.at.Namespace)
	case s.size == 0 && !sized:
		return "its driver does not say how large it is: set resources.requests.storage"
	}
	return ""
}

// classOf is the storage class that a DataVolume's claim gets, or nil. volume is shaped.
func (r *Reconciler) classOf(ctx context.Context, volume *cdi.DataVolume) (*storagev1.StorageClass, error) {
	name := volume.Spec.Claim().Spec.StorageClassName
	if name != nil || volume.Spec.Storage != nil {
		return r.class(ctx, ptr.Deref(name, ""))
	}
	return r.defaultClass(ctx, storageclass.DefaultAnnotation) // the API server's, for a claim that names none
}

// inMode is a DataVolume with the volume mode of the snapshot that it is restored from, unless it names one.
func (o *origin) inMode(volume *cdi.DataVolume) *cdi.DataVolume {
	form := volume.Spec.Storage
	if o == nil || o.snapshot == nil || o.snapshot.mode == nil || form == nil || form.VolumeMode != nil {
		return volume
	}
	volume = volume.DeepCopy()
	volume.Spec.Storage.VolumeMode = o.snapshot.mode
	return volume
}

// restore has the storage make a DataVolume's new claim from the snapshot.
func (o *origin) restore(claim *corev1.PersistentVolumeClaim) {
	claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &snapshotVersion.Group, Kind: snapshotKind, Name: o.at.Name}
	claim.Spec.StorageClassName = &o.snapshot.class
	if claim.Spec.Resources.Requests == nil {
		claim.Spec.Resources.Requests = corev1.ResourceList{}
	}
	// Storage restores into no less than it took.
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if least := bytesOf(o.snapshot.size); size.Cmp(least) < 0 {
		size = least
	}
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = size
}

// parseBytes reads a size that another controller wrote.
func parseBytes(text string) (int64, error) {
	const most = 64
	if len(text) > most {
		return 0, fmt.Errorf("it has more than %d characters", most)
	}
	size, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, err
	}
	if size.Sign() <= 0 || size.CmpInt64(cdi.MaxDiskBytes) > 0 {
		return 0, fmt.Errorf("%s is not more than 0 and at most 1Ei", text)
	}
	return size.Value(), nil
}
