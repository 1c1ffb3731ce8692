package filler

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// virtctl image-upload pvc makes a claim that asks for an upload, and no DataVolume. Such a claim gets a DataVolume of
// its name, which goes with the claim.

// reasonUploadNotPossible is the event of a claim that gets no DataVolume.
const reasonUploadNotPossible = "UploadNotPossible"

// claimKind is the kind of claims of which only the metadata are read.
func claimKind() *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}}
}

// made says whether a claim was made for an upload, and no DataVolume controls it.
func made(claim metav1.Object) bool {
	return annotated(claim, cdi.UploadTargetAnnotation) && metav1.GetControllerOfNoCopy(claim) == nil
}

// asks says whether a claim still waits for its upload.
func asks(claim metav1.Object) bool {
	return made(claim) && !annotated(claim, cdi.PopulatedForAnnotation) && claim.GetDeletionTimestamp() == nil &&
		claim.GetAnnotations()[cdi.PodPhaseAnnotation] != string(corev1.PodSucceeded)
}

// trimClaim keeps the metadata of claims that were made for an upload, and the names of all others.
func trimClaim(object any) (any, error) {
	claim, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	claim.ManagedFields = nil
	if !made(claim) {
		claim.ObjectMeta = metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion}
	}
	return claim, nil
}

// volumeFor is the DataVolume by which a claim that asks for an upload is filled.
func volumeFor(claim *corev1.PersistentVolumeClaim) *cdi.DataVolume {
	volume := &cdi.DataVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name, Annotations: map[string]string{cdi.FillsAnnotation: string(claim.UID)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: claim.Name, UID: claim.UID}}},
		Spec: cdi.DataVolumeSpec{Source: &cdi.DataVolumeSource{Upload: &cdi.DataVolumeSourceUpload{}},
			PVC: &corev1.PersistentVolumeClaimSpec{AccessModes: claim.Spec.AccessModes, VolumeMode: claim.Spec.VolumeMode,
				StorageClassName: claim.Spec.StorageClassName, Resources: claim.Spec.Resources}},
	}
	if value, ok := claim.Annotations[cdi.ImmediateBindingAnnotation]; ok {
		volume.Annotations[cdi.ImmediateBindingAnnotation] = value
	}
	return volume
}

// answer makes the DataVolume of a claim that asks for an upload, if there is such a claim.
func (r *Reconciler) answer(ctx context.Context, key types.NamespacedName) error {
	known := claimKind()
	if err := r.Claims.Get(ctx, key, known); err != nil || !asks(known) {
		return client.IgnoreNotFound(err)
	}
	claim := &corev1.PersistentVolumeClaim{}
	if err := r.Live.Get(ctx, key, claim); err != nil || !asks(claim) || claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil {
		return client.IgnoreNotFound(err) // the storage fills what has a source
	}
	if ours, err := r.Ours(ctx); err != nil || !ours {
		return err
	}
	err := kit.SortedRefusal(r.Client.Create(ctx, volumeFor(claim)))
	switch {
	case err == nil, apierrors.IsAlreadyExists(err): // the cache was behind
		return nil
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		r.Events.Eventf(claim, nil, corev1.EventTypeWarning, reasonUploadNotPossible, "Upload", "%s", err.Error())
	}
	return fmt.Errorf("create DataVolume %s: %w", key.Name, err)
}
