package filler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
	"github.com/kubeqemu/kubeqemu/controllers/storageclass"
)

// origin is what is known of the claim whose disk a DataVolume copies, or of the snapshot that it is restored from.
type origin struct {
	// at is the claim's or the snapshot's name, or empty where the DataVolume's DataSource leads to none.
	at types.NamespacedName
	// trouble is why the claim or snapshot is not found, or may not be copied.
	trouble notice
	// snapshot is nil if the source is a claim.
	snapshot *snapshot
	// claim is nil if there is none.
	claim *corev1.PersistentVolumeClaim
	// user is a pod that may write to the claim, or empty.
	user string
	// unknown is why nobody knows whether a pod may write to the claim, or empty.
	unknown string
	// cloned: the storage clones the claim. It is known while the DataVolume's own claim is to be made.
	cloned bool
	// pods are the source pods that were made for a DataVolume of this name, of whatever claim.
	pods []*corev1.Pod
}

// sourcesPolicy asks, when a DataVolume is made, whether its maker may copy from another namespace.
const sourcesPolicy = "kubevirt-data-volume-sources"

// policyDelay is how long an API server may take to hear of a policy.
const policyDelay = 10 * time.Second

// maxDataSources bounds how many DataSources lead to one another.
const maxDataSources = 4

// origin looks at the claim that a DataVolume copies. Where nothing is to be copied any more, only the
// pods are of interest.
func (r *Reconciler) origin(ctx context.Context, w world) (*origin, error) {
	key := client.ObjectKeyFromObject(w.volume)
	o := &origin{}
	switch source := w.volume.Spec.Source; {
	case source == nil:
	case source.PVC != nil:
		o.at = types.NamespacedName{Namespace: cmp.Or(source.PVC.Namespace, key.Namespace), Name: source.PVC.Name}
	case source.Snapshot != nil:
		o.at, o.snapshot = types.NamespacedName{Namespace: cmp.Or(source.Snapshot.Namespace, key.Namespace), Name: source.Snapshot.Name}, &snapshot{}
	}
	o.pods = w.sources
	if w.volume.Status.Phase == cdi.Succeeded || w.claim != nil && filledFor(w.volume, w.claim) || len(w.volume.Spec.Validate()) > 0 {
		return o, nil
	}
	if err := r.resolve(ctx, w.volume, o); err != nil || o.trouble.reason != "" {
		return o, err
	}
	if err := r.permitted(ctx, w, o); err != nil || o.trouble.reason != "" {
		return o, err
	}
	if o.snapshot != nil {
		return o, r.restores(ctx, w, o)
	}
	var err error
	if o.claim, err = r.claim(ctx, o.at); err != nil || o.claim == nil {
		return o, err
	}
	if o.user, err = r.user(ctx, w, o); errors.Is(err, errManyPods) {
		o.unknown, err = err.Error(), nil
	} else if err != nil {
		return o, err
	}
	if w.claim == nil {
		o.cloned, err = r.clones(ctx, w.volume, o)
	}
	return o, err
}

// resolve finds the source's name, unless the DataVolume has it.
func (r *Reconciler) resolve(ctx context.Context, volume *cdi.DataVolume, o *origin) error {
	if volume.Spec.SourceRef != nil {
		if err := r.follow(ctx, volume, o); err != nil {
			return err
		}
	}
	if o.snapshot == nil && o.at == client.ObjectKeyFromObject(volume) {
		o.trouble = notice{corev1.EventTypeWarning, reasonCloneInvalid, fmt.Sprintf("the source, PVC %s, is the DataVolume's own claim", o.at.Name)}
	}
	return nil
}

// follow resolves a DataSource. Whoever made the DataVolume was asked for rights in the namespace of the
// first DataSource alone. So no DataSource leads elsewhere, but back to the DataVolume's own namespace.
func (r *Reconciler) follow(ctx context.Context, volume *cdi.DataVolume, o *origin) error {
	ref := volume.Spec.SourceRef
	at := types.NamespacedName{Namespace: cmp.Or(ptr.Deref(ref.Namespace, ""), volume.Namespace), Name: ref.Name}
	home := []string{at.Namespace, volume.Namespace}
	for range maxDataSources {
		source := &cdi.DataSource{}
		if err := r.Live.Get(ctx, at, source); apierrors.IsNotFound(err) {
			o.trouble = notice{corev1.EventTypeWarning, reasonCloneWithoutSource, fmt.Sprintf("The source DataSource %s doesn't exist", at)}
			return nil
		} else if err != nil {
			return fmt.Errorf("get DataSource %s: %w", at, err)
		}
		next, isClaim, isSnapshot, trouble := leadsTo(source, at, home)
		if o.trouble = trouble; trouble.reason != "" {
			return nil
		}
		if at = next; isSnapshot {
			o.snapshot = &snapshot{}
		}
		if isClaim || isSnapshot {
			o.at = at
			return nil
		}
	}
	o.trouble = notice{corev1.EventTypeWarning, reasonCloneInvalid, fmt.Sprintf("DataSource %s is the last of more than %d that lead to one another", at, maxDataSources)}
	return nil
}

// leadsTo is the claim, the snapshot or the next DataSource that a DataSource names in one of the namespaces.
func leadsTo(source *cdi.DataSource, at types.NamespacedName, home []string) (next types.NamespacedName, isClaim, isSnapshot bool, trouble notice) {
	spec := &source.Spec.Source
	if errs := spec.Validate(field.NewPath("spec", "source")); len(errs) > 0 {
		return next, false, false, notice{corev1.EventTypeWarning, reasonCloneInvalid, datavolume.Short(fmt.Sprintf("DataSource %s: %v", at, errs.ToAggregate()))}
	}
	switch {
	case spec.PVC != nil:
		isClaim, next = true, types.NamespacedName{Namespace: spec.PVC.Namespace, Name: spec.PVC.Name}
	case spec.Snapshot != nil:
		isSnapshot, next = true, types.NamespacedName{Namespace: spec.Snapshot.Namespace, Name: spec.Snapshot.Name}
	default:
		next = types.NamespacedName{Namespace: spec.DataSource.Namespace, Name: spec.DataSource.Name}
	}
	next.Namespace = cmp.Or(next.Namespace, at.Namespace)
	if !slices.Contains(home, next.Namespace) {
		trouble = notice{corev1.EventTypeWarning, reasonErrNotAuthorized, fmt.Sprintf("DataSource %s leads to namespace %s: it may lead to its own namespace and to the DataVolume's", at, next.Namespace)}
	}
	return next, isClaim, isSnapshot, trouble
}

// permitted makes sure that the API server has asked whether the DataVolume's maker may copy from
// another namespace: that the policy for it was there before the DataVolume. A DataVolume from before the policy, or of CDI, was asked by other rules or by none. A source pod that was made for this very
// DataVolume shows that it is known.
func (r *Reconciler) permitted(ctx context.Context, w world, o *origin) error {
	from := o.at.Namespace
	if ref := w.volume.Spec.SourceRef; ref != nil && from == w.volume.Namespace {
		from = cmp.Or(ptr.Deref(ref.Namespace, ""), from)
	}
	if from == w.volume.Namespace || o.served(w.volume) {
		return nil
	}
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kind})
		err := r.Live.Get(ctx, client.ObjectKey{Name: sourcesPolicy}, object)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("get %s %s: %w", kind, sourcesPolicy, err)
		}
		if err != nil || object.CreationTimestamp.Add(policyDelay).After(w.volume.CreationTimestamp.Time) {
			o.trouble = notice{corev1.EventTypeWarning, reasonErrNotAuthorized, fmt.Sprintf("nobody has asked whether the DataVolume's maker may copy from namespace %s: "+
				"the DataVolume is older than the %s %s, or was made within %.0f s of it: delete it, and make it again", from, kind, sourcesPolicy, policyDelay.Seconds())}
		}
	}
	return nil
}

// served says whether a source pod was made for this very DataVolume in the namespace that it copies from.
// Nobody but this controller makes one there. An importer pod, in the DataVolume's own namespace, shows
// less: who made the DataVolume may have made that too, before a policy forbade it.
func (o *origin) served(volume *cdi.DataVolume) bool {
	return slices.ContainsFunc(o.pods, func(pod *corev1.Pod) bool {
		return pod.Namespace == o.at.Namespace && pod.Name == sourcePodName(volume) && pod.Labels[forLabel] == string(volume.UID)
	})
}

// clones says whether the storage clones the claim: both claims are of one namespace, one class and one
// mode, and the class can.
func (r *Reconciler) clones(ctx context.Context, volume *cdi.DataVolume, o *origin) (bool, error) {
	if o.at.Namespace != volume.Namespace {
		return false, nil
	}
	class, err := r.class(ctx, ptr.Deref(o.claim.Spec.StorageClassName, ""))
	if err != nil || class == nil || !clones(class, o.claim) {
		return false, err
	}
	volume, err = r.shaped(ctx, volume)
	if err != nil {
		return false, err
	}
	form := volume.Spec.Claim().Spec
	sameClass := class.Annotations[storageclass.DefaultAnnotation] == "true" // of the form pvc the API server fills in the class
	if form.StorageClassName != nil {
		sameClass = *form.StorageClassName == class.Name
	}
	return sameClass && isBlock(o.claim) == isBlock(&corev1.PersistentVolumeClaim{Spec: form}), nil
}

// sourcePods are the source pods that were made for a DataVolume of this name. They may be in any
// namespace. They are the cache's own, which nobody may change.
func (r *Reconciler) sourcePods(ctx context.Context, volume types.NamespacedName) (pods []*corev1.Pod, err error) {
	list := &corev1.PodList{}
	if err := r.Client.List(ctx, list, client.HasLabels{forLabel}, client.UnsafeDisableDeepCopy); err != nil { // of the cache
		return nil, fmt.Errorf("list source pods: %w", err)
	}
	for i := range list.Items {
		if isSourcePod(&list.Items[i]) && list.Items[i].Annotations[forAnnotation] == volume.String() {
			pods = append(pods, &list.Items[i])
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return pods, nil
}

// shape fits a DataVolume's new claim to its source.
func (o *origin) shape(claim *corev1.PersistentVolumeClaim) {
	if o.snapshot != nil {
		o.restore(claim)
		return
	}
	requests := claim.Spec.Resources.Requests
	size, sized := requests[corev1.ResourceStorage]
	if requests == nil {
		requests = corev1.ResourceList{}
		claim.Spec.Resources.Requests = requests
	}
	if !sized {
		size = o.size(isBlock(claim))
	}
	if o.cloned {
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: o.at.Name}
		claim.Spec.StorageClassName = o.claim.Spec.StorageClassName
		// Storage clones into no less than it clones from.
		if least := o.claim.Status.Capacity[corev1.ResourceStorage]; size.Cmp(least) < 0 {
			size = least
		}
	}
	requests[corev1.ResourceStorage] = size
}

// size is how large a claim must be for the whole disk of the source, block or not.
func (o *origin) size(block bool) (size quantity) {
	if !isBlock(o.claim) {
		return o.claim.Spec.Resources.Requests[corev1.ResourceStorage]
	}
	size = o.claim.Status.Capacity[corev1.ResourceStorage]
	if !block {
		size = bytesOf(withOverhead(roundUp(size.Value())))
	}
	return size
}

// tooSmall says why a disk of so many bytes has no room for the source's, or nothing. How large a file is
// that is the source, the importer finds out.
func (o *origin) tooSmall(bytes int64) string {
	info := v1.PersistentVolumeClaimInfo{VolumeMode: o.claim.Spec.VolumeMode}
	if capacity := o.claim.Status.Capacity[corev1.ResourceStorage]; info.IsBlock() && capacity.Value() > bytes {
		return fmt.Sprintf("PVC %s has a disk of %d bytes, and the copy would have %d", o.at, capacity.Value(), bytes)
	}
	return ""
}
