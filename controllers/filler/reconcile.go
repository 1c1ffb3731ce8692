// Package filler fills DataVolumes where the real CDI is not: it makes the claim of each and the pod
// of its importer, follows both, and writes the status.
//
// decide.go says what is done next, by what is there. Nothing is kept but in the objects themselves,
// so that another virt-controller goes on where this one ended. A claim says that it is filled
// (cdi.PopulatedForAnnotation) before its DataVolume does; the real CDI reads the same. Owner
// references delete everything with the DataVolume, but the source pods of copies: those of a DataVolume
// that is gone are deleted by the Reconciler, which hears of each at its start.
package filler

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
	"github.com/kubeqemu/kubeqemu/controllers/images"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
	"github.com/kubeqemu/kubeqemu/controllers/storageclass"
	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// Progresses are what importers say. A Watcher has them.
type Progresses interface {
	Follow(volume types.NamespacedName, pods Pods) *importer.Progress
	Forget(volume types.NamespacedName)
}

// Reconciler fills DataVolumes.
type Reconciler struct {
	// Client's cache holds DataVolumes, importer pods, and the claims with the label
	// cdi.ManagedByLabel.
	Client client.Client
	// Claims has the metadata of all claims that ask for an upload.
	Claims client.Reader
	// Live reads past the cache.
	Live       client.Reader
	Clock      clock.PassiveClock
	Events     events.EventRecorder
	Config     Config
	Images     func(context.Context) (images.Way, error) // as the Filler's
	Progresses Progresses
	// Ours says whether DataVolumes are this controller's to fill. Each step asks before it changes
	// anything: CDI may have come since the last look.
	Ours   func(context.Context) (bool, error)
	writes kit.Writes
	uses   uses
	// listings are of the pods of namespaces that are copied from.
	listings listings
	// places are those of copies from other namespaces.
	places places
	moves  moves
}

// Reconcile takes the next step of one DataVolume.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	volume := &cdi.DataVolume{}
	err := r.Client.Get(ctx, request.NamespacedName, volume)
	if err != nil || volume.DeletionTimestamp != nil { // what it owns goes with it
		r.Progresses.Forget(request.NamespacedName)
		r.writes.Forget(request.NamespacedName)
		r.uses.forget(request.NamespacedName)
		r.moves.forget(request.NamespacedName)
		if client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, err
		}
		if err != nil {
			if err := r.answer(ctx, request.NamespacedName); err != nil {
				return ctrl.Result{}, err
			}
		}
		return ctrl.Result{}, r.dropSources(ctx, request.NamespacedName)
	}
	if r.writes.Behind(volume) {
		return ctrl.Result{RequeueAfter: kit.WriteDelay}, nil
	}
	w, err := r.look(ctx, volume)
	if err != nil {
		return ctrl.Result{}, err
	}
	s := decide(w)
	if s.action == nothing && equality.Semantic.DeepEqual(volume.Status, s.status) {
		return ctrl.Result{RequeueAfter: s.after}, nil
	}
	if ours, err := r.Ours(ctx); err != nil {
		return ctrl.Result{}, err
	} else if !ours {
		return ctrl.Result{RequeueAfter: recheck}, nil
	}
	failure := r.act(ctx, w, &s)
	if err := r.write(ctx, volume, s); err != nil {
		return ctrl.Result{}, err
	}
	if failure != nil {
		return ctrl.Result{}, failure
	}
	return ctrl.Result{RequeueAfter: s.after}, nil
}

// look reads what the DataVolume's next step depends on.
func (r *Reconciler) look(ctx context.Context, volume *cdi.DataVolume) (world, error) {
	w := world{volume: volume, now: r.Clock.Now()}
	key := client.ObjectKeyFromObject(volume)
	var err error
	if w.claim, err = r.claim(ctx, key); err != nil {
		return w, err
	}
	pod := &corev1.Pod{}
	switch err := r.Client.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: podName(key.Name)}, pod); {
	case err == nil:
		w.pod = pod
	case !apierrors.IsNotFound(err):
		return w, fmt.Errorf("get pod %s: %w", podName(key.Name), err)
	}
	if w.claim != nil && w.claim.Status.Phase != corev1.ClaimBound {
		classes := &storagev1.StorageClassList{}
		if err := r.Live.List(ctx, classes); err != nil {
			return w, fmt.Errorf("list StorageClasses: %w", err)
		}
		w.lacks = storageclass.Lacks(w.claim, classes.Items)
		w.firstConsumer = slices.ContainsFunc(classes.Items, func(c storagev1.StorageClass) bool {
			return c.Name == ptr.Deref(storageclass.OfClaim(w.claim), "") && waitsForConsumer(&c)
		})
	}
	// An earlier DataVolume of the name may have been a copy, whose end nobody has seen.
	if w.sources, err = r.sourcePods(ctx, key); err != nil {
		return w, err
	}
	if volume.Spec.Copies() {
		if w.origin, err = r.origin(ctx, w); err != nil {
			return w, err
		}
	}
	if pods, ok := podsOf(w); ok {
		w.progress = r.Progresses.Follow(key, pods)
	} else {
		r.Progresses.Forget(key)
	}
	w.moved = r.moves.note(w)
	return w, nil
}

// claim returns the claim of a DataVolume, or nil. The cache lacks claims that others made.
func (r *Reconciler) claim(ctx context.Context, key client.ObjectKey) (*corev1.PersistentVolumeClaim, error) {
	claim := &corev1.PersistentVolumeClaim{}
	err := r.Client.Get(ctx, key, claim)
	if apierrors.IsNotFound(err) {
		err = r.Live.Get(ctx, key, claim)
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get PersistentVolumeClaim %s: %w", key.Name, err)
	}
	return claim, nil
}

// act does what a step says. A refusal by the API server becomes a condition.
func (r *Reconciler) act(ctx context.Context, w world, s *step) error {
	switch s.action {
	case makeClaim:
		return r.makeClaim(ctx, w, s)
	case makePod:
		return r.makePod(ctx, w, s)
	case adoptClaim:
		owners, err := json.Marshal(append(slices.Clone(w.claim.OwnerReferences), *metav1.NewControllerRef(w.volume, cdi.DataVolumeGroupVersionKind)))
		if err != nil {
			return fmt.Errorf("encode the claim's owners: %w", err)
		}
		return r.patchClaim(ctx, w, filled(w), fmt.Sprintf(`,"labels":{%q:%q},"ownerReferences":%s`, cdi.ManagedByLabel, cdi.ManagedByKubeqemu, owners))
	case fillClaim:
		return r.patchClaim(ctx, w, filled(w), "")
	case makeSource:
		return r.makeSource(ctx, w, s)
	case deleteSourcePod:
		return deleteSource(ctx, r.Client, s.drop)
	case markClaim:
		return r.patchClaim(ctx, w, s.marks, "")
	case deletePod:
		err := r.Client.Delete(ctx, w.pod, client.Preconditions{UID: &w.pod.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete pod %s: %w", w.pod.Name, err)
		}
	}
	return nil
}

func (r *Reconciler) makeClaim(ctx context.Context, w world, s *step) error {
	volume, err := r.shaped(ctx, w.origin.inMode(w.volume))
	if err != nil {
		return err
	}
	claim := claimOf(volume)
	if w.copies() {
		w.origin.shape(claim)
	}
	err = kit.SortedRefusal(r.Client.Create(ctx, claim))
	switch {
	case err == nil, apierrors.IsAlreadyExists(err): // the cache was behind
		return nil
	case kit.IsRefusal(err):
		s.invalid(w, err.Error())
	}
	return fmt.Errorf("create PersistentVolumeClaim %s: %w", claim.Name, err)
}

// importerOf renders the importer pod of a DataVolume. source is the source pod of a copy.
func (r *Reconciler) importerOf(ctx context.Context, w world, s *step, source *corev1.Pod) (*corev1.Pod, error) {
	config, err := r.config(ctx)
	if source := w.volume.Spec.Source; err == nil && r.Images != nil && source != nil && source.Registry != nil {
		config.Images, err = r.Images(ctx)
	}
	if err != nil {
		return nil, err
	}
	pod, err := podOf(w.volume, w.claim, config, s.restarts)
	if err == nil && w.copies() {
		w.origin.bind(pod, source)
	}
	return pod, err
}

// makePod makes the importer pod. If the API server refuses it, the source pod of a copy goes: it is nobody's use until
// somebody changes something.
func (r *Reconciler) makePod(ctx context.Context, w world, s *step) error {
	pod, err := r.importerOf(ctx, w, s, s.serving)
	if err != nil {
		return err
	}
	err = kit.CreatePod(ctx, r.Client, r.Live, pod, kit.Room{CPUs: 1})
	switch {
	case apierrors.IsAlreadyExists(err):
		s.after = kit.WriteDelay
		return r.otherPod(ctx, w, s, pod.Name)
	case err == nil:
		s.status.RestartCount = max(s.status.RestartCount, s.restarts)
		s.running(corev1.ConditionFalse, reasonPending, "")
		return nil
	case kit.IsRefusal(err):
		if s.events = nil; scheduled(s.status.Phase) {
			s.status.Phase = cdi.PVCBound // nothing is scheduled
		}
		s.stopped(w, reasonStartingPod, err.Error())
		if s.serving != nil {
			if err := deleteSource(ctx, r.Client, s.serving); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("create pod %s: %w", pod.Name, err)
}

// otherPod handles a pod that has the importer pod's name and is not in the cache. The cache selects
// importer pods by their label. So a labelled pod of the DataVolume reaches the cache soon, an
// unlabelled pod of the DataVolume never does and is deleted, and a foreign pod is in the way.
func (r *Reconciler) otherPod(ctx context.Context, w world, s *step, name string) error {
	pod := &metav1.PartialObjectMetadata{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: w.volume.Namespace, Name: name}, pod)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	switch {
	case !owns(w.volume, pod):
		s.after = recheck
		s.stopped(w, reasonStartingPod, fmt.Sprintf("a pod %s that is not this DataVolume's is in the way of its importer: delete it", name))
	case !reachesCache(pod):
		s.after = recheck
		if err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete pod %s: %w", name, err)
		}
	}
	return nil
}

// filled are the annotations of a claim that say that it is filled.
func filled(w world) map[string]string {
	annotations := map[string]string{cdi.PopulatedForAnnotation: w.volume.Name}
	if uploads(w.volume) && w.pod != nil { // an adopted claim has no pod
		annotations[cdi.PodPhaseAnnotation], annotations[cdi.PodReadyAnnotation] = string(corev1.PodSucceeded), "false"
	}
	return annotations
}

// patchClaim writes annotations of a claim, with more of its metadata. The version holds what
// was decided: a claim that changed meanwhile is looked at again.
func (r *Reconciler) patchClaim(ctx context.Context, w world, annotations map[string]string, more string) error {
	encoded, err := json.Marshal(annotations)
	if err != nil {
		return fmt.Errorf("encode the claim's annotations: %w", err)
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"resourceVersion":%q,"annotations":%s%s}}`, w.claim.UID, w.claim.ResourceVersion, encoded, more)
	target := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.claim.Namespace, Name: w.claim.Name}}
	if err := r.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return fmt.Errorf("write to PersistentVolumeClaim %s how far it is: %w", w.claim.Name, err)
	}
	return nil
}

// actionOf is what is done for a DataVolume, for its events.
func actionOf(volume *cdi.DataVolume) string {
	if volume.Spec.Copies() {
		return "Clone"
	}
	return "Import"
}

// write writes the status if it changed, and then the events.
func (r *Reconciler) write(ctx context.Context, volume *cdi.DataVolume, s step) error {
	if equality.Semantic.DeepEqual(volume.Status, s.status) {
		return nil
	}
	after := volume.DeepCopy()
	after.Status = s.status
	err := r.Client.Status().Patch(ctx, after, client.MergeFromWithOptions(volume, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write status: %w", err))
	}
	r.writes.Note(volume, after)
	for _, e := range s.events {
		r.Events.Eventf(volume, nil, e.kind, e.reason, actionOf(volume), "%s", datavolume.Short(e.note))
	}
	return nil
}
